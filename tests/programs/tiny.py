"""A model and data that train in a moment, for tests of whole runs."""

from __future__ import annotations

import os
import signal
import time

import keras
import numpy as np
import tensorflow as tf

# What user modules do, and what must not matter: a tensor made while they are imported.
SCALE = tf.constant(2.0)


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.RandomState(0)
    y = rng.randint(0, 3, 100)
    return (rng.randn(100, 8) + y[:, None]).astype("float32"), y


def validation() -> tuple[np.ndarray, np.ndarray]:
    x, y = data()
    return x[:31] + 0.5, y[:31]


def ids():
    """Yields examples from a generator."""
    for i in range(100):
        yield {"x": np.full([8], i, np.float32), "label": np.int64(i % 3)}


def other_on_each_worker() -> tuple[np.ndarray, np.ndarray]:
    x, y = data()
    count = 64 if '"index": 0' in os.environ["TF_CONFIG"] else 40
    return x[:count], y[:count]


def record_features() -> dict[str, tf.io.FixedLenFeature]:
    return {
        "x": tf.io.FixedLenFeature([8], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }


def write_records(path: str) -> None:
    x, y = data()
    with tf.io.TFRecordWriter(path) as writer:
        for row, label in zip(x, y, strict=True):
            example = tf.train.Example()
            example.features.feature["x"].float_list.value.extend(row)
            example.features.feature["label"].int64_list.value.append(label)
            writer.write(example.SerializeToString())


def too_few() -> tuple[np.ndarray, np.ndarray]:
    x, y = data()
    return x[:10], y[:10]


def none() -> dict[str, np.ndarray]:
    return {"x": np.zeros([0, 8], np.float32), "label": np.zeros([0], np.int64)}


def scale(features: dict[str, tf.Tensor]) -> tf.Tensor:
    return features["x"] * SCALE


def jitter(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return x + tf.random.stateless_normal(tf.shape(x), seed, stddev=0.1)


def slow(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    def wait(value: np.ndarray) -> np.ndarray:
        time.sleep(0.02)
        return value

    return tf.ensure_shape(tf.numpy_function(wait, [x], x.dtype), x.shape)


def build(*, dropout: float = 0.3, learning_rate: float = 0.01, **compile_options) -> keras.Model:
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((8,), name="x"),
            layers.Dense(16),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(dropout),
            layers.Dense(3, name="logits"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **compile_options,
    )
    return model


def build_accumulating() -> keras.Model:
    model = build()
    model.optimizer.gradient_accumulation_steps = 2
    return model


def build_nothing() -> None:
    return None


class Seen(keras.callbacks.Callback):
    """Prints what a callback sees on this worker."""

    def on_epoch_begin(self, epoch, logs=None):
        print(f"seen begin {epoch}", flush=True)

    def on_epoch_end(self, epoch, logs=None):
        rate = float(self.model.optimizer.learning_rate.numpy())
        shown = " ".join(f"{name}={logs[name]:.9g}" for name in sorted(logs))
        print(f"seen end {epoch} rate={rate:.9g} {shown}", flush=True)


class KillsOnce(keras.callbacks.Callback):
    """Kills the process with SIGKILL at the moment `KILL_AT` names, the first time only."""

    def _kill_if(self, moment: str) -> None:
        if os.environ.get("KILL_AT") == moment and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_begin(self, logs=None):
        self._kill_if("train begin")

    def on_epoch_begin(self, epoch, logs=None):
        self._kill_if(f"epoch {epoch} begin")

    def on_epoch_end(self, epoch, logs=None):
        self._kill_if(f"epoch {epoch} end")

    def on_train_batch_end(self, batch, logs=None):
        self._kill_if(f"batch {batch} end")

    def on_train_end(self, logs=None):
        self._kill_if("train end")


def killed() -> list[keras.callbacks.Callback]:
    return [KillsOnce()]


def killed_and_deciding() -> list[keras.callbacks.Callback]:
    return [*deciding(), KillsOnce()]


def deciding() -> list[keras.callbacks.Callback]:
    return [
        Seen(),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.5),
        keras.callbacks.EarlyStopping("val_loss", patience=3, min_delta=0.5),
    ]


def writing() -> list[keras.callbacks.Callback]:
    """Paths are relative: each test worker has a directory of its own."""
    return [
        keras.callbacks.ModelCheckpoint("checkpoint-{epoch}.keras"),
        keras.callbacks.TensorBoard("tensorboard"),
        keras.callbacks.CSVLogger("log.csv", append=True),
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (epoch + 1)),
        Seen(),
    ]


def with_keras_backup() -> list[keras.callbacks.Callback]:
    return [keras.callbacks.BackupAndRestore("backup")]


class Drift(keras.callbacks.Callback):
    """Changes a weight on the second worker alone."""

    def on_epoch_end(self, epoch, logs=None):
        if '"index": 1' in os.environ.get("TF_CONFIG", ""):
            self.model.layers[0].kernel.assign_add(tf.ones_like(self.model.layers[0].kernel))


def drifting() -> list[keras.callbacks.Callback]:
    return [Drift()]
