"""`BackupAndRestore`: the state of a run, saved by the chief and restored everywhere.

    backup = BackupAndRestore(directory, save_freq=100, state=state, exchange=exchange)
    callbacks = keras.callbacks.CallbackList([..., backup], model=model)

A generation holds every variable of model and optimizer, random-generator states
included, the metrics of the open epoch, the state of the other callbacks, and the
position: step and epoch. It keeps the name and the arguments of Keras' class; the loop
offers what a Keras callback cannot see through `RunState`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import time
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from trainer.callback_state import CallbackState
from trainer.errors import ConfigError
from trainer.generations import Generation, Generations
from trainer.strategy import Exchange

# Names that no variable has: those begin with model/ or optimizer/.
_TOTALS = "totals"
_CALLBACKS = "callbacks/"


@dataclasses.dataclass
class RunState:
    """Where a run stands. The loop moves it on; a backup saves and restores it."""

    totals: np.ndarray
    """float64 [MetricSums.size]: metrics of the open epoch so far."""

    step: int = 0
    """Steps done."""

    epoch: int = 0
    """The open epoch, counted from 0."""

    logs: dict[str, float] = dataclasses.field(default_factory=dict)
    """The newest value of each metric, validation included."""

    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What gives a step its place in the data; a backup fits no other."""

    total_steps: int = 0
    """Steps of the whole run."""


class BackupAndRestore(keras.callbacks.BackupAndRestore):
    """Saves generations and restores the newest whole one.

    It must be the last callback: it saves what the others hold, and restores it after
    their `on_train_begin` has reset them.

    Args:
      backup_dir: directory of the generations; only the chief reads and writes it.
      save_freq: "epoch", or steps between backups, rounded up to the end of a loop.
      double_checkpoint: kept for compatibility; two generations are kept anyway.
      delete_checkpoint: remove the generations at the end; not by default, since a
        finished run is exported and continued from its last one.
      state: the run's state.
      exchange: between the workers.
      is_chief: whether this worker writes.
      keep: generations kept.
      others: the callbacks whose state belongs to the run.
    """

    def __init__(
        self,
        backup_dir: str,
        save_freq: str | int = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = False,
        *,
        state: RunState,
        exchange: Exchange,
        is_chief: bool,
        keep: int = 2,
        others: list[keras.callbacks.Callback] | None = None,
    ):
        super().__init__(backup_dir, save_freq, double_checkpoint, delete_checkpoint)
        self._state = state
        self._exchange = exchange
        self._is_chief = is_chief
        self._generations = Generations(backup_dir, keep=keep)
        self._callback_state = CallbackState(others or [])
        # An epoch's last step is saved twice: with the epoch open, and when it is closed.
        self._saved = (0, 0)
        self.seconds = 0.0
        """Time spent saving so far."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores the newest whole generation, if there is one, on every worker."""
        self._callback_state.mark_fresh()
        data = b""
        if self._is_chief and (generation := self._generations.newest()):
            data = _pack(generation)
        data = self._exchange.broadcast(data)
        if data:
            self._restore(_unpack(data))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves once `save_freq` steps have passed since the last multiple of it."""
        every, (last, _) = self.save_freq, self._saved
        if isinstance(every, int) and self._state.step // every > last // every:
            self.save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves the finished epoch."""
        if self.save_freq == "epoch":
            self.save()

    def on_train_end(self, logs: Any = None) -> None:
        """Saves the final state."""
        if self.delete_checkpoint:
            if self._is_chief:
                self._generations.delete()
        else:
            self.save()

    def save(self) -> None:
        """Commits a generation of the current state, unless the last one holds it.

        Every worker must call it.
        """
        position = (self._state.step, self._state.epoch)
        if position == self._saved:
            return
        start = time.perf_counter()
        arrays = variables_of(self.model)
        names = sorted(arrays)
        digests = np.array([zlib.crc32(arrays[name].tobytes()) for name in names], np.int64)
        self._exchange.require_equal(names, digests, "the value of")
        if self._is_chief:
            callbacks, callback_arrays = self._callback_state.capture()
            state = {
                "step": self._state.step,
                "epoch": self._state.epoch,
                "logs": self._state.logs,
                "data": self._state.data,
                "total_steps": self._state.total_steps,
                "stop_training": bool(self.model.stop_training),
                "callbacks": callbacks,
            }
            arrays |= {_CALLBACKS + name: array for name, array in callback_arrays.items()}
            path = self._generations.write({**arrays, _TOTALS: self._state.totals}, state)
            logging.debug("backup %s", path)
        self._saved = position
        self.seconds += time.perf_counter() - start

    def _restore(self, generation: Generation) -> None:
        saved = generation.state
        for name, value in self._state.data.items():
            if saved["data"].get(name) != value:
                raise ConfigError(
                    f"{name}={value!r}, but the backup in {self.backup_dir} was made with "
                    f"{saved['data'].get(name)!r}: its steps mean other examples; restore the "
                    "value or use a new --run_dir"
                )
        restore_variables(self.model, generation.arrays)
        self._state.totals = generation.arrays[_TOTALS].copy()
        self._state.step, self._state.epoch = self._saved = saved["step"], saved["epoch"]
        # Whoever asks for more steps than the run was stopped in wants it to go on.
        same_target = saved["total_steps"] == self._state.total_steps
        self.model.stop_training = saved["stop_training"] and same_target
        self._state.logs = saved["logs"]
        of_callbacks = {
            name.removeprefix(_CALLBACKS): array
            for name, array in generation.arrays.items()
            if name.startswith(_CALLBACKS)
        }
        self._callback_state.restore(saved["callbacks"], of_callbacks)


def variables_of(model: keras.Model) -> dict[str, np.ndarray]:
    """Returns every variable of model and optimizer that outlives a loop, by path.

    Random-generator states are among them; metrics are not: they are empty between loops.
    """
    metrics = {id(v) for v in model.metrics_variables}
    arrays: dict[str, np.ndarray] = {}
    for name, variable in _named(model, metrics):
        # .numpy() of a mirrored variable reads this worker's copy without a collective.
        arrays[name] = np.asarray(variable.value.numpy())
    return arrays


def restore_variables(model: keras.Model, arrays: dict[str, np.ndarray]) -> None:
    """Assigns `arrays` to the variables of model and optimizer, by path.

    Raises:
      ConfigError: a variable is missing from `arrays` or has another shape.
    """
    metrics = {id(v) for v in model.metrics_variables}
    for name, variable in _named(model, metrics):
        if name not in arrays or arrays[name].shape != tuple(variable.shape):
            found = arrays[name].shape if name in arrays else "nothing"
            raise ConfigError(
                f"backup does not fit the model: {name} has shape {tuple(variable.shape)}, the "
                f"backup holds {found}; use the model of the backup or a new --run_dir"
            )
        variable.assign(arrays[name])


def weights_sha256(model: keras.Model) -> str:
    """Returns the SHA-256 over every variable of model and optimizer, sorted by path.

    It covers path, dtype, shape and bytes of each; equal digests mean equal runs.
    """
    digest = hashlib.sha256()
    arrays = variables_of(model)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}\0{array.dtype.name}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _named(model: keras.Model, leave_out: set[int]) -> list[tuple[str, Any]]:
    """Returns (name, variable) of model and optimizer; equal paths get a number."""
    named: list[tuple[str, Any]] = []
    counts: dict[str, int] = {}
    optimizer = model.optimizer.variables if model.optimizer else []
    for prefix, variables in (("model/", model.variables), ("optimizer/", optimizer)):
        for variable in variables:
            if id(variable) in leave_out:
                continue
            path = prefix + variable.path
            counts[path] = counts.get(path, 0) + 1
            named.append((path if counts[path] == 1 else f"{path}#{counts[path]}", variable))
    return named


def _pack(generation: Generation) -> bytes:
    """Serialises a generation: a JSON header, then the arrays' bytes."""
    names = sorted(generation.arrays)
    header = {
        "state": generation.state,
        "arrays": [
            (name, generation.arrays[name].dtype.name, generation.arrays[name].shape)
            for name in names
        ],
    }
    out = io.BytesIO()
    text = json.dumps(header).encode()
    out.write(len(text).to_bytes(8, "little") + text)
    for name in names:
        out.write(np.ascontiguousarray(generation.arrays[name]).tobytes())
    return out.getvalue()


def _unpack(data: bytes) -> Generation:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    offset = 8 + length
    arrays = {}
    for name, dtype_name, shape in header["arrays"]:
        dtype = tf.dtypes.as_dtype(dtype_name).as_numpy_dtype
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(data, dtype, count, offset).reshape(shape)
        offset += count * np.dtype(dtype).itemsize
    return Generation(header["state"]["step"], arrays, header["state"])
