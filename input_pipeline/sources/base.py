"""What a source of examples offers to the pipeline.

A source is of one of two kinds. `RandomAccess` reads any records by index, so the order is
free and resuming costs nothing. `Streamed` reads files from front to back.

Both end in `parse`: one raw record -> {feature: tensor}.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.errors import ConfigError

Features = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class RandomAccess:
    """Records that can be read by index."""

    name: str
    num_examples: int
    read: Callable[[tf.Tensor], Any]
    """Graph code: int64 [n] indices -> raw records, each tensor with n rows."""
    parse: Callable[[Any], Features]
    """Graph code: one raw record -> its features."""
    feature_spec: dict[str, tf.TensorSpec]
    """Shape and dtype of each feature of one example."""


@dataclasses.dataclass(frozen=True)
class RecordFile:
    """One file of a streamed source."""

    path: str
    num_records: int
    compression: str
    """"" or "GZIP"."""


@dataclasses.dataclass(frozen=True)
class Streamed:
    """Records in files that are read from front to back."""

    name: str
    files: Sequence[RecordFile]
    parse: Callable[[tf.Tensor], Features]
    feature_spec: dict[str, tf.TensorSpec]

    @property
    def num_examples(self) -> int:
        """Records in all files."""
        return sum(file.num_records for file in self.files)


Source = RandomAccess | Streamed


def stacked(values: Sequence[Any]) -> np.ndarray:
    """Stacks NumPy values; bytes stay objects, since NumPy's strings drop zero bytes at the end."""
    return np.stack([np.asarray(v, object if isinstance(v, bytes) else None) for v in values])


def spec_of(parse: Callable[[Any], Features], raw_spec: Any) -> dict[str, tf.TensorSpec]:
    """Returns shape and dtype of each feature that `parse` makes of a raw record."""
    outputs = tf.function(parse).get_concrete_function(raw_spec).structured_outputs
    return {name: tf.TensorSpec(t.shape, t.dtype, name=name) for name, t in outputs.items()}


def example_parser(source: str, features: dict[str, Any]) -> Callable[[tf.Tensor], Features]:
    """Returns a parser of serialised tf.train.Example records by tf.io feature specs.

    Raises:
      ConfigError: one is parsed into something else than a tensor.
    """
    for name, spec in features.items():
        if isinstance(spec, tf.io.VarLenFeature | tf.io.SparseFeature):
            raise ConfigError(
                f"{source}: data.features makes a sparse tensor of {name!r}; use "
                "tf.io.FixedLenFeature, or tf.io.RaggedFeature if its length varies"
            )

    def parse(record: tf.Tensor) -> Features:
        return tf.io.parse_single_example(record, features)

    return parse
