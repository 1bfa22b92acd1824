"""`array_record:GLOB`: serialised tf.train.Example records, read by index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from input_pipeline.files import data_files
from input_pipeline.sources.base import RandomAccess, example_parser, spec_of
from trainer.errors import DataError


def count(source: str, pattern: str) -> int:
    """Returns the records of all matching files, without TensorFlow.

    Raises:
      DataError: no file matches, or one cannot be read; names it.
    """
    return sum(_count_file(source, path) for path in data_files(source, pattern))


def open_array_record(source: str, pattern: str, features: dict[str, Any]) -> RandomAccess:
    """Opens all matching files as one sequence of records, in the order of their names."""
    files = data_files(source, pattern)
    for path in files:
        _count_file(source, path)
    parse = example_parser(features)
    return RandomAccess(
        name=source,
        num_examples=count(source, pattern),
        read=reader(files),
        parse=parse,
        feature_spec=spec_of(parse, tf.TensorSpec([], tf.string)),
    )


def reader(files: Sequence[Any]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns graph code that reads records by index: int64 [n] -> string [n].

    Args:
      files: paths, or objects with filename, skip, take and examples_in_shard.
    """
    from array_record.python import array_record_data_source

    records = array_record_data_source.ArrayRecordDataSource(files)

    def fetch(indices: np.ndarray) -> np.ndarray:
        return np.array(records.__getitems__(indices.tolist()), object)

    def read(indices: tf.Tensor) -> tf.Tensor:
        raw = tf.numpy_function(fetch, [indices], tf.string, stateful=False)
        return tf.ensure_shape(raw, indices.shape)

    return read


def _count_file(source: str, path: str) -> int:
    from array_record.python import array_record_module

    try:
        reader = array_record_module.ArrayRecordReader(path)
        count = reader.num_records()
        reader.close()
    except Exception as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{source}: {path} is not a whole ArrayRecord file: {reason}") from None
    if count == 0:
        raise DataError(f"{source}: {path} holds no records; remove it or write it again")
    return count
