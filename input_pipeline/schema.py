"""Whether records are what `data.features` says, seen at the first record of each file.

    require_features("tfrecord:/data/*", paths, first_records, {"id": tf.io.FixedLenFeature(...)})

A file that was written by another version of a program is found here, by name, and not
after hours as a parsing error that names none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from trainer.errors import DataError

_LISTS = {"int64_list": "int64", "float_list": "float32", "bytes_list": "string"}


def require_features(
    source: str, paths: Sequence[str], records: Iterable[bytes], features: dict[str, Any]
) -> None:
    """Checks one serialised tf.train.Example of each of `paths`, in their order.

    Raises:
      DataError: a feature is missing, or has another type or length than declared; names
        the file, the feature, and both.
    """
    remaining = iter(records)
    for path in paths:
        try:
            example = tf.train.Example.FromString(next(remaining))
        except DecodeError:
            raise DataError(f"{source}: {path} does not hold tf.train.Example records") from None
        except tf.errors.DataLossError as error:
            reason = " ".join(error.message.split())
            raise DataError(f"{source}: {path} is corrupt in its first record: {reason}") from None
        for name, spec in features.items():
            problem = _problem(example, getattr(spec, "value_key", None) or name, spec)
            if problem:
                raise DataError(f"{source}: {path}: {problem}; correct it or data.features")


def _problem(example: tf.train.Example, key: str, spec: Any) -> str:
    """Returns what is wrong with feature `key`, or nothing."""
    stored = example.features.feature
    kind = stored[key].WhichOneof("kind") if key in stored else None
    must_be_there = isinstance(spec, tf.io.FixedLenFeature) and spec.default_value is None
    if kind is None:
        there = ", ".join(sorted(stored))
        return f"no feature {key!r}, there are {there}" if must_be_there else ""
    if _LISTS[kind] != spec.dtype.name:
        return f"feature {key!r} is {_LISTS[kind]}, but data.features says {spec.dtype.name}"
    if isinstance(spec, tf.io.FixedLenFeature):
        found, declared = len(getattr(stored[key], kind).value), math.prod(spec.shape)
        if found != declared and (found or must_be_there):
            return (
                f"feature {key!r} has {found} values, but data.features says shape "
                f"{list(spec.shape)}, which is {declared}"
            )
    return ""
