"""The Keras callbacks of a run: the user's, without those that write on other workers.

    callbacks = user_callbacks(config, is_chief=cluster.is_chief)

All workers see the same logs, so callbacks that decide (EarlyStopping,
ReduceLROnPlateau) decide alike everywhere. Callbacks that write files run on the chief
only: shared paths have one writer.
"""

from __future__ import annotations

import keras

from trainer.config import TrainConfig
from trainer.errors import ConfigError
from trainer.user_code import load

_WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


def user_callbacks(config: TrainConfig, *, is_chief: bool) -> list[keras.callbacks.Callback]:
    """Returns the callbacks of `train.callbacks` that run on this worker.

    A class that writes files of its own sets `chief_only = True`.

    Raises:
      ConfigError: the function does not return callbacks, or returns Keras' own
        BackupAndRestore.
    """
    if not config.callbacks:
        return []
    callbacks = load(config.callbacks, field="train.callbacks")()
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            raise ConfigError(
                f"train.callbacks={config.callbacks!r} returned a {type(callback).__name__}: "
                "must return a list of keras.callbacks.Callback"
            )
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ConfigError(
                f"train.callbacks={config.callbacks!r} returned BackupAndRestore: the run has "
                "one of its own; set backup.every_steps and backup.dir instead"
            )
    return [c for c in callbacks if is_chief or not _writes(c)]


def _writes(callback: keras.callbacks.Callback) -> bool:
    return isinstance(callback, _WRITERS) or getattr(callback, "chief_only", False)
