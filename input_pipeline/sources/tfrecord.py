"""`tfrecord:GLOB`: serialised tf.train.Example records, read from front to back.

Plain and gzip files are told apart by their first bytes, each by itself.
"""

from __future__ import annotations

import functools
import gzip
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from input_pipeline.files import data_files
from input_pipeline.schema import require_features
from input_pipeline.sources.base import RecordFile, Streamed, example_parser, spec_of
from trainer.errors import DataError

# A record is its length (8 bytes), a checksum of it (4), the payload, a checksum of it (4).
_HEADER = 12
_FOOTER = 4

_OPEN_AT_A_TIME = 16


def count(source: str, pattern: str) -> int:
    """Returns the records of all matching files, without TensorFlow's runtime.

    Raises:
      DataError: no file matches, or one is cut, corrupt or empty; names it and the place.
    """
    return sum(file.num_records for file in _files(source, pattern))


def open_tfrecord(source: str, pattern: str, features: dict[str, Any]) -> Streamed:
    """Opens all matching files."""
    files = _files(source, pattern)
    parse = example_parser(source, features)
    require_features(source, [file.path for file in files], _first_records(files), features)
    return Streamed(
        name=source,
        files=files,
        parse=parse,
        feature_spec=spec_of(parse, tf.TensorSpec([], tf.string)),
    )


def _first_records(files: tuple[RecordFile, ...]) -> Iterator[bytes]:
    """Returns the first record of each file, in their order; many are opened at a time."""
    paths = [file.path for file in files]
    compressions = [file.compression for file in files]
    firsts = tf.data.Dataset.from_tensor_slices((paths, compressions)).interleave(
        lambda path, compression: tf.data.TFRecordDataset(path, compression).take(1),
        cycle_length=_OPEN_AT_A_TIME,
        num_parallel_calls=_OPEN_AT_A_TIME,
        deterministic=True,
    )
    return firsts.as_numpy_iterator()


def _files(source: str, pattern: str) -> tuple[RecordFile, ...]:
    files = []
    for path in data_files(source, pattern):
        status = tf.io.gfile.stat(path)
        files.append(_scan(source, path, status.length, status.mtime_nsec))
    return tuple(files)


@functools.cache
def _scan(source: str, path: str, size: int, mtime: int) -> RecordFile:
    """Counts the records of a file; cached, since a run counts before and after start-up."""
    del size, mtime
    try:
        with _open(path) as file:
            compressed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if compressed:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    records = _count_records(source, path, unpacked)
            else:
                records = _count_records(source, path, file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{source}: {path} is a cut or corrupt gzip file: {error}") from None
    except (OSError, tf.errors.OpError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{source}: {path} cannot be read: {reason}") from None
    if records == 0:
        raise DataError(f"{source}: {path} holds no records; remove it or write it again")
    return RecordFile(path, records, "GZIP" if compressed else "")


def _open(path: str) -> Any:
    """Opens a file for reading; Python's own files seek ten times as fast as GFile."""
    return tf.io.gfile.GFile(path, "rb") if "://" in path else open(path, "rb")


def _count_records(source: str, path: str, file: Any) -> int:
    """Walks the record headers. TensorFlow takes a file cut inside a header for a whole one."""
    records = offset = 0
    while header := file.read(_HEADER):
        if len(header) < _HEADER:
            raise _cut(source, path, records, offset)
        length, checksum = struct.unpack("<QI", header)
        if _masked_crc32c(header[:8]) != checksum:
            raise _cut(source, path, records, offset)
        end = offset + _HEADER + length + _FOOTER
        file.seek(end - 1)
        if not file.read(1):
            raise _cut(source, path, records, offset)
        records, offset = records + 1, end
    return records


def _crc32c_of_byte(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_CRC32C = [_crc32c_of_byte(value) for value in range(256)]


def _masked_crc32c(data: bytes) -> int:
    """Returns the checksum that TFRecord stores: CRC-32C, rotated and offset."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _cut(source: str, path: str, records: int, offset: int) -> DataError:
    return DataError(
        f"{source}: {path} is cut or corrupt: record {records} at byte {offset} is not whole; "
        "write the file again"
    )
