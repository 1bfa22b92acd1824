"""The state of Keras callbacks: what they have counted and seen so far.

    state = CallbackState(callbacks)
    state.mark_fresh()                       # after on_train_begin has reset them
    saved = state.capture()                  # JSON-able
    state.restore(saved)

EarlyStopping's patience, ReduceLROnPlateau's best value and History's lists are plain
attributes, and Keras offers no call to save them. So every attribute of a plain type that
has *changed* since the start is state; what has not is configuration, which a resumed
run may change. A callback with other state offers `get_state() -> JSON-able` and
`set_state(value)`.
"""

from __future__ import annotations

import math
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
        self._fresh = [_plain_attributes(callback) for callback in self._callbacks]

    def capture(self) -> list[dict[str, Any]]:
        """Returns the state of each callback, with its class."""
        saved = []
        for callback, fresh in zip(self._callbacks, self._fresh, strict=True):
            if hasattr(callback, "get_state"):
                state = callback.get_state()
            else:
                now = _plain_attributes(callback)
                state = {k: v for k, v in now.items() if k not in fresh or fresh[k] != v}
            saved.append({"class": type(callback).__name__, "state": state})
        return saved

    def restore(self, saved: list[dict[str, Any]]) -> None:
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
                setattr(callback, name, _decode(value))


def _plain_attributes(callback: keras.callbacks.Callback) -> dict[str, Any]:
    return {
        name: _encode(value)
        for name, value in vars(callback).items()
        if name not in _NOT_STATE and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str, np.generic, np.ndarray))


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"__array__": [value.dtype.str, list(value.shape), value.tobytes().hex()]}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": repr(value)}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, dict) and "__float__" in value:
        return float(value["__float__"])
    if isinstance(value, dict) and "__array__" in value:
        dtype, shape, data = value["__array__"]
        return np.frombuffer(bytes.fromhex(data), dtype).reshape(shape).copy()
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if isinstance(value, dict):
        return {key: _decode(item) for key, item in value.items()}
    return value
