"""`tfrecord:GLOB`: serialised tf.train.Example records, read from front to back.

Plain and gzip files are told apart by their first bytes, each by itself.
"""

from __future__ import annotations

import functools
import gzip
import struct
import zlib
from typing import Any, BinaryIO

import tensorflow as tf

from input_pipeline.files import data_files
from input_pipeline.sources.base import RecordFile, Streamed, example_parser, spec_of
from trainer.errors import DataError

# A record is its length (8 bytes), a checksum of it (4), the payload, a checksum of it (4).
_HEADER = 12
_FOOTER = 4


def count(source: str, pattern: str) -> int:
    """Returns the records of all matching files, without TensorFlow's runtime.

    Raises:
      DataError: no file matches, or one is cut or empty; names it and the place.
    """
    return sum(file.num_records for file in _files(source, pattern))


def open_tfrecord(source: str, pattern: str, features: dict[str, Any]) -> Streamed:
    """Opens all matching files."""
    parse = example_parser(features)
    return Streamed(
        name=source,
        files=_files(source, pattern),
        parse=parse,
        feature_spec=spec_of(parse, tf.TensorSpec([], tf.string)),
    )


def _files(source: str, pattern: str) -> tuple[RecordFile, ...]:
    files = []
    for path in data_files(source, pattern):
        status = tf.io.gfile.stat(path)
        files.append(_scan(source, path, status.length, status.mtime_nsec))
    return tuple(files)


@functools.lru_cache(maxsize=None)
def _scan(source: str, path: str, size: int, mtime: int) -> RecordFile:
    """Counts the records of a file; cached, since a run counts before and after start-up."""
    del mtime
    with tf.io.gfile.GFile(path, "rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if compressed:
            try:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    records = _count_by_reading(source, path, unpacked)
            except (EOFError, OSError, zlib.error) as error:
                raise DataError(f"{source}: {path} is a cut or corrupt gzip file: {error}") from None
        else:
            records = _count_by_seeking(source, path, file, size)
    if records == 0:
        raise DataError(f"{source}: {path} holds no records; remove it or write it again")
    return RecordFile(path, records, "GZIP" if compressed else "")


def _count_by_seeking(source: str, path: str, file: Any, size: int) -> int:
    """Walks the record headers. TensorFlow takes a file cut inside a header for a whole one."""
    records = offset = 0
    while offset < size:
        file.seek(offset)
        header = file.read(8)
        end = offset + _HEADER + _FOOTER
        if len(header) == 8:
            end += struct.unpack("<Q", header)[0]
        if len(header) < 8 or end > size:
            raise _cut(source, path, records, offset)
        records, offset = records + 1, end
    return records


def _count_by_reading(source: str, path: str, file: BinaryIO | gzip.GzipFile) -> int:
    records = offset = 0
    while header := file.read(_HEADER):
        if len(header) < _HEADER:
            raise _cut(source, path, records, offset)
        length = struct.unpack("<Q", header[:8])[0] + _FOOTER
        left = length
        while left:
            chunk = file.read(min(left, 2**20))
            if not chunk:
                raise _cut(source, path, records, offset)
            left -= len(chunk)
        records, offset = records + 1, offset + _HEADER + length
    return records


def _cut(source: str, path: str, records: int, offset: int) -> DataError:
    return DataError(
        f"{source}: {path} is cut or corrupt: record {records} at byte {offset} is not whole; "
        "write the file again"
    )
