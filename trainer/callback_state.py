"""The state of Keras callbacks: what they have counted and seen so far.

    state = CallbackState(callbacks)
    state.mark_fresh()                       # after on_train_begin has reset them
    saved, arrays = state.capture()          # JSON-able, and {name: array} that it refers to
    state.restore(saved, arrays)

EarlyStopping's patience, ReduceLROnPlateau's best value and History's lists are plain
attributes, and Keras offers no call to save them. So every attribute of a plain type that
has *changed* since the start is state; what has not is configuration, which a resumed
run may change. A callback with other state offers `get_state() -> JSON-able` and
`set_state(value)`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from trainer import compat

# Set by Keras or by the trainer, not state of the run.
_NOT_STATE = frozenset({"params", "_model", "model"})


class CallbackState:
    """Saves and restores what some callbacks hold; all workers have the same order."""

    def __init__(self, callbacks: list[keras.callbacks.Callback]):
        self._callbacks = callbacks
        self._fresh: list[dict[str, Any]] = [{} for _ in callbacks]

    def mark_fresh(self) -> None:
        """Notes how the callbacks look before they have seen anything."""
        for callback in self._callbacks:
            compat.settle_monitor(callback)
        self._fresh = [
            {name: _digest(value) for name, value in _plain_attributes(callback).items()}
            for callback in self._callbacks
        ]

    def capture(self) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
        """Returns the state of each callback, with its class, and the arrays in it by name."""
        saved = []
        arrays: dict[str, np.ndarray] = {}
        for callback, fresh in zip(self._callbacks, self._fresh, strict=True):
            if hasattr(callback, "get_state"):
                state = callback.get_state()
            else:
                state = {
                    name: _encode(value, arrays)
                    for name, value in _plain_attributes(callback).items()
                    if name not in fresh or fresh[name] != _digest(value)
                }
            saved.append({"class": type(callback).__name__, "state": state})
        return saved, arrays

    def restore(self, saved: list[dict[str, Any]], arrays: Mapping[str, np.ndarray]) -> None:
        """Gives each callback its saved state, matched by class and, within it, by order.

        Only the chief has the callbacks that write files, so positions do not match.
        """
        remaining = list(saved)
        for callback in self._callbacks:
            match = next((s for s in remaining if s["class"] == type(callback).__name__), None)
            if match is None:
                continue
            remaining.remove(match)
            if hasattr(callback, "set_state"):
                callback.set_state(match["state"])
                continue
            for name, value in match["state"].items():
                setattr(callback, name, _decode(value, arrays))


def _plain_attributes(callback: keras.callbacks.Callback) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(callback).items()
        if name not in _NOT_STATE and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str, np.generic, np.ndarray))


def _digest(value: Any) -> str:
    """Returns a text that is equal for equal plain values, arrays included."""
    arrays: dict[str, np.ndarray] = {}
    text = repr(_encode(value, arrays))
    return text + "".join(f"{a.dtype}{a.shape}{zlib.crc32(a.tobytes())}" for a in arrays.values())


def _encode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Returns `value` as JSON can hold it; arrays in it are added to `arrays` and named."""
    if isinstance(value, np.ndarray):
        name = f"array{len(arrays)}"
        arrays[name] = value
        return {"__array__": name}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": repr(value)}
    if isinstance(value, list):
        return [_encode(item, arrays) for item in value]
    if isinstance(value, dict):
        return {key: _encode(item, arrays) for key, item in value.items()}
    return value


def _decode(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, dict) and "__float__" in value:
        return float(value["__float__"])
    if isinstance(value, dict) and "__array__" in value:
        return arrays[value["__array__"]].copy()
    if isinstance(value, list):
        return [_decode(item, arrays) for item in value]
    if isinstance(value, dict):
        return {key: _decode(item, arrays) for key, item in value.items()}
    return value
