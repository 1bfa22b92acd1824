"""`array_record:GLOB`: serialised tf.train.Example records, read by index."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from input_pipeline.files import data_files
from input_pipeline.schema import require_features
from input_pipeline.sources.base import RandomAccess, example_parser, spec_of
from trainer.errors import DataError


@dataclasses.dataclass(frozen=True)
class WholeFile:
    """All records of a file, in the form of a tfds file instruction."""

    filename: str
    examples_in_shard: int

    @property
    def skip(self) -> int:
        """Records left out at the beginning."""
        return 0

    @property
    def take(self) -> int:
        """Records read."""
        return self.examples_in_shard


def count(source: str, pattern: str) -> int:
    """Returns the records of all matching files, without TensorFlow's runtime.

    Raises:
      DataError: no file matches, or one cannot be read; names it.
    """
    return sum(file.take for file in _files(source, pattern))


def open_array_record(source: str, pattern: str, features: dict[str, Any]) -> RandomAccess:
    """Opens all matching files as one sequence of records, in the order of their names."""
    files = _files(source, pattern)
    parse = example_parser(source, features)
    read = reader(files)
    ends = np.cumsum([file.take for file in files])
    firsts = tf.constant([0, *ends[:-1]], tf.int64)
    require_features(source, [f.filename for f in files], read(firsts).numpy(), features)
    return RandomAccess(
        name=source,
        num_examples=int(ends[-1]),
        read=read,
        parse=parse,
        feature_spec=spec_of(parse, tf.TensorSpec([], tf.string)),
    )


def reader(files: Sequence[Any]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns graph code that reads records by index: int64 [n] -> string [n].

    Args:
      files: objects with filename, skip, take and examples_in_shard.
    """
    from array_record.python import array_record_data_source

    records = array_record_data_source.ArrayRecordDataSource(files)

    def fetch(indices: np.ndarray) -> np.ndarray:
        return np.array(records.__getitems__(indices.tolist()), object)

    def read(indices: tf.Tensor) -> tf.Tensor:
        raw = tf.numpy_function(fetch, [indices], tf.string, stateful=False)
        return tf.ensure_shape(raw, indices.shape)

    return read


def _files(source: str, pattern: str) -> list[WholeFile]:
    return [WholeFile(path, _count(source, path)) for path in data_files(source, pattern)]


def _count(source: str, path: str) -> int:
    from array_record.python import array_record_module

    try:
        file = array_record_module.ArrayRecordReader(path)
        records = file.num_records()
        file.close()
    except Exception as error:
        reason = " ".join(str(error).split()) or "cut or corrupt"
        raise DataError(f"{source}: {path} is not a whole ArrayRecord file: {reason}") from None
    if records == 0:
        raise DataError(f"{source}: {path} holds no records; remove it or write it again")
    return records
