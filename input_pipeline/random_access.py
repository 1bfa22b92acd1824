"""Raw records in the order of their positions, read by index.

    dataset = records(source, share, seed=0, shuffle=True, start_step=100, end_step=200)

Each step's records are read in one call; what came before `start_step` is never read.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from input_pipeline.order import Share, record_indices
from input_pipeline.sources.base import RandomAccess
from input_pipeline.sources.memory import from_columns
from trainer.errors import ConfigError

# Records read in one call outside of training: enough to make the call cheap.
_READ = 256


def records(
    source: RandomAccess,
    share: Share,
    *,
    seed: int,
    shuffle: bool,
    start_step: int,
    end_step: int,
    shuffle_buffer: int = 0,
) -> tf.data.Dataset:
    """Returns elements (raw record, position int64 []) of steps [start_step, end_step).

    `shuffle_buffer` is not needed: the order is a permutation of all records.
    """
    del shuffle_buffer

    def read(step: tf.Tensor) -> tuple:
        positions = share.positions(step)
        indices = record_indices(positions, source.num_examples, seed=seed, shuffle=shuffle)
        return source.read(indices), positions

    steps = tf.data.Dataset.range(start_step, end_step)
    return steps.map(read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).unbatch()


def range_of(source: RandomAccess, first: int, end: int) -> tf.data.Dataset:
    """Returns raw records [first, end) in file order."""
    blocks = tf.data.Dataset.range(first, end).batch(_READ)
    return blocks.map(
        source.read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    ).unbatch()


def cached(source: RandomAccess) -> RandomAccess:
    """Returns the same examples, parsed once and held in memory.

    Raises:
      ConfigError: examples differ in shape.
    """
    for name, spec in source.feature_spec.items():
        if not spec.shape.is_fully_defined():
            raise ConfigError(
                f"data.cache=True: {source.name}: the shape of {name!r} varies; unset it"
            )
    examples = range_of(source, 0, source.num_examples).map(
        source.parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    blocks = list(examples.batch(_READ).as_numpy_iterator())
    columns = {name: np.concatenate([b[name] for b in blocks]) for name in source.feature_spec}
    return from_columns(source.name, columns)
