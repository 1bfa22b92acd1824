"""`memory:MODULE:FUNCTION`: examples that a function returns, held in memory.

The function returns a dict of arrays, an `(x, y)` or `(x, y, sample_weight)` tuple, or
an iterable of dicts (one per example). Every worker holds all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from input_pipeline.sources.base import RandomAccess
from trainer.errors import DataError
from trainer.user_code import load


def open_memory(source: str, address: str, field: str) -> RandomAccess:
    """Calls the function and returns its examples.

    Raises:
      DataError: it returns nothing, something else, or columns of different lengths.
    """
    return from_columns(source, _columns(source, load(address, field=field)()))


def from_columns(source: str, columns: dict[str, np.ndarray]) -> RandomAccess:
    """Returns a source over arrays that have one row per example."""
    lengths = {name: len(column) for name, column in columns.items()}
    if not lengths or min(lengths.values()) == 0:
        raise DataError(f"{source}: no examples")
    if len(set(lengths.values())) > 1:
        raise DataError(f"{source}: columns differ in length: {lengths}")
    # Tensors made here are captured by the pipeline's functions, not copied into them.
    tensors = {name: tf.constant(column) for name, column in columns.items()}
    return RandomAccess(
        name=source,
        num_examples=next(iter(lengths.values())),
        read=lambda indices: {name: tf.gather(t, indices) for name, t in tensors.items()},
        parse=lambda features: features,
        feature_spec={n: tf.TensorSpec(t.shape[1:], t.dtype, name=n) for n, t in tensors.items()},
    )


def _columns(source: str, value: Any) -> dict[str, np.ndarray]:
    if isinstance(value, dict):
        return {name: np.asarray(column) for name, column in value.items()}
    if isinstance(value, tuple) and 1 <= len(value) <= 3:
        names = ("x", "label", "sample_weight")
        return {name: np.asarray(column) for name, column in zip(names, value, strict=False)}
    if not isinstance(value, Iterable):
        raise DataError(
            f"{source}: returned a {type(value).__name__}; return a dict of arrays, (x, y), or "
            "an iterable of dicts"
        )
    rows = list(value)
    if rows and not all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
        raise DataError(f"{source}: every example must be a dict with the same keys")
    try:
        return {name: np.stack([row[name] for row in rows]) for name in (rows[0] if rows else {})}
    except ValueError as error:
        raise DataError(f"{source}: examples differ in shape: {error}") from None
