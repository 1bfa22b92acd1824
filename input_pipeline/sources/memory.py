"""`memory:MODULE:FUNCTION`: examples that a function returns, held in memory.

The function returns a dict of arrays, an `(x, y)` or `(x, y, sample_weight)` tuple, or
an iterable of dicts (one per example), such as a generator. Every worker holds all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from input_pipeline.sources.base import RandomAccess
from trainer.errors import DataError
from trainer.user_code import load

MAX_ROWS = 1_000_000
"""Examples, and bytes below, taken from an iterable: more is one that does not end."""
MAX_BYTES = 4 * 2**30


def open_memory(source: str, address: str, field: str) -> RandomAccess:
    """Calls the function and returns its examples.

    Raises:
      DataError: it returns nothing, something else, columns of different lengths, or an
        iterable that does not end.
    """
    return from_columns(source, _columns(source, load(address, field=field)()))


def from_columns(source: str, columns: dict[str, np.ndarray]) -> RandomAccess:
    """Returns a source over arrays that have one row per example."""
    for name, column in columns.items():
        if not column.ndim:
            raise DataError(f"{source}: {name!r} is {column.item()!r}, not an array of examples")
    lengths = {name: len(column) for name, column in columns.items()}
    if not lengths or min(lengths.values()) == 0:
        raise DataError(f"{source}: no examples")
    if len(set(lengths.values())) > 1:
        raise DataError(f"{source}: columns differ in length: {lengths}")
    # Tensors made here are captured by the pipeline's functions, not copied into them.
    with tf.device("CPU:0"):
        tensors = {name: _tensor(source, name, column) for name, column in columns.items()}
    return RandomAccess(
        name=source,
        num_examples=next(iter(lengths.values())),
        read=lambda indices: {name: tf.gather(t, indices) for name, t in tensors.items()},
        parse=lambda features: features,
        feature_spec={n: tf.TensorSpec(t.shape[1:], t.dtype, name=n) for n, t in tensors.items()},
    )


def _tensor(source: str, name: str, column: np.ndarray) -> tf.Tensor:
    try:
        return tf.constant(column)
    except (TypeError, ValueError):
        kind = type(column.flat[0]).__name__
        raise DataError(f"{source}: {name!r} holds {kind}, which no tensor can hold") from None


def _columns(source: str, value: Any) -> dict[str, np.ndarray]:
    try:
        if isinstance(value, dict):
            return {name: _array(column) for name, column in value.items()}
        if isinstance(value, tuple) and 1 <= len(value) <= 3:
            names = ("x", "label", "sample_weight")
            return {name: _array(column) for name, column in zip(names, value, strict=False)}
        if isinstance(value, Iterable):
            rows = _rows(source, value)
            return {name: np.stack([r[name] for r in rows]) for name in (rows[0] if rows else {})}
    except ValueError as error:
        raise DataError(f"{source}: examples differ in shape: {error}") from None
    raise DataError(
        f"{source}: returned a {type(value).__name__}; return a dict of arrays, (x, y), or "
        "an iterable of dicts"
    )


def _rows(source: str, values: Iterable) -> list[dict[str, np.ndarray]]:
    rows: list[dict[str, np.ndarray]] = []
    size = 0
    for value in values:
        if not isinstance(value, dict) or (rows and value.keys() != rows[0].keys()):
            raise DataError(f"{source}: every example must be a dict with the same keys")
        rows.append({name: _array(feature) for name, feature in value.items()})
        size += sum(feature.nbytes for feature in rows[-1].values())
        if len(rows) > MAX_ROWS or size > MAX_BYTES:
            raise DataError(
                f"{source}: does not end within {len(rows) - 1:,} examples ({size / 2**30:.1f} "
                "GiB); if it is meant to be so large, return a dict of arrays or write files"
            )
    return rows


def _array(value: Any) -> np.ndarray:
    """Returns an array; bytes stay objects, since NumPy's strings drop zero bytes at the end."""
    array = np.asarray(value)
    is_made_here = array.dtype.kind == "S" and not isinstance(value, np.ndarray)
    return np.asarray(value, object) if is_made_here else array
