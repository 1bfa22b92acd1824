"""Runs some training steps of a small model on one task of a cluster and saves the outcome.

    [TF_CONFIG=…] python -m tests.programs.steps OUT.npz --model=batchnorm --steps=8

Without TF_CONFIG: `--devices=N` virtual CPUs in one process, or `--plain` for Keras' fit.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np

from trainer import compat

compat.import_tensorflow()
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from trainer import replica_step, strategy  # noqa: E402
from trainer.backup import variables_of  # noqa: E402
from trainer.cluster import Cluster  # noqa: E402
from trainer.config import ClusterConfig  # noqa: E402
from trainer.evaluate import Evaluator  # noqa: E402
from trainer.inner_loop import InnerLoop  # noqa: E402
from trainer.metrics import MetricSums  # noqa: E402

BATCH = 12


def dataset(examples: int = 240) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.RandomState(0)
    return rng.randn(examples, 8).astype("float32"), rng.randint(0, 3, examples)


def as_arrays(logs: dict[str, float]) -> dict[str, Any]:
    return {f"log/{name}": value for name, value in logs.items()}


class CustomStep(keras.Model):
    """A model with a train_step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(16, activation="relu")
        self.head = keras.layers.Dense(3)

    def call(self, x, training=False):
        return self.head(self.hidden(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
            loss += 0.0 * tf.reduce_sum(self.hidden.kernel)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.compute_metrics(x, y, self(x), None)


class RecordsMask(keras.layers.Layer):
    """Keeps the newest mask of its dropout, a copy on each replica."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5)
        self.mask = self.add_weight(
            shape=(64,), dtype="int32", initializer="zeros", trainable=False, name="mask"
        )

    def call(self, x):
        self.mask.assign(tf.cast(self.dropout(tf.ones([64]), training=True) > 0, tf.int32))
        return x


def build_model(kind: str) -> keras.Model:
    layers = keras.layers
    optimizer: keras.optimizers.Optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    hidden = [layers.Dense(16, activation="relu")]
    if kind == "batchnorm":
        hidden = [
            layers.Dense(16, kernel_regularizer=keras.regularizers.L2(0.01)),
            layers.BatchNormalization(synchronized=True),
            layers.ReLU(),
        ]
    elif kind == "local_batchnorm":
        hidden = [layers.Dense(16), layers.BatchNormalization(), layers.ReLU()]
    elif kind == "dropout":
        hidden = [layers.Dense(16, activation="relu"), layers.Dropout(0.5)]
    elif kind == "masks":
        hidden = [RecordsMask()]
    elif kind == "adam":
        optimizer = keras.optimizers.Adam(0.01, global_clipnorm=0.5)
    elif kind == "clipnorm":
        optimizer = keras.optimizers.SGD(0.1, clipnorm=0.05)
    elif kind == "ema":
        optimizer = keras.optimizers.Adam(0.01, use_ema=True, weight_decay=0.01)
    elif kind == "schedule":
        optimizer = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 8))
    model: keras.Model = CustomStep()
    if kind != "custom":
        model = keras.Sequential([layers.Input((8,)), *hidden, layers.Dense(3)])
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--model", default="dense")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--clip_norm", type=float)
    parser.add_argument("--eval_examples", type=int, default=0)
    parser.add_argument("--eval_batch", type=int, default=4)
    parser.add_argument("--weights", action="store_true", help="with sample weights")
    args = parser.parse_args()
    x, y = dataset()
    w = np.linspace(0, 2, len(x)).astype("float32")
    keras.config.set_dtype_policy(args.precision)

    if args.plain:
        keras.utils.set_random_seed(3)
        model = build_model(args.model)
        n = args.steps * BATCH
        history = model.fit(
            x[:n], y[:n], sample_weight=w[:n] if args.weights else None,
            batch_size=BATCH, shuffle=False, verbose=0,
        )  # fmt: skip
        arrays: dict[str, Any] = variables_of(model)
        logs = {name: values[-1] for name, values in history.history.items()}
        if args.eval_examples:
            e = args.eval_examples
            values = model.evaluate(x[:e], y[:e], batch_size=e, verbose=0, return_dict=True)
            logs |= {f"val_{name}": value for name, value in values.items()}
        np.savez(args.out, **arrays, **as_arrays(logs))
        return

    if args.devices > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * args.devices
        )
    cluster = Cluster.from_env(os.environ, ClusterConfig())
    distribution = strategy.create(cluster, ClusterConfig(heartbeat_timeout_s=60))
    local = distribution.num_replicas_in_sync // cluster.num_workers
    share = BATCH // cluster.num_workers
    rows = np.concatenate(
        [
            np.arange(t * BATCH + cluster.rank * share, t * BATCH + (cluster.rank + 1) * share)
            for t in range(args.steps)
        ]
    )
    columns = (x[rows], y[rows], w[rows]) if args.weights else (x[rows], y[rows])
    data = tf.data.Dataset.from_tensor_slices(columns).batch(share, drop_remainder=True)
    with distribution.scope():
        keras.utils.set_random_seed(3)
        model = build_model(args.model)
        batch = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), data.element_spec)
        compat.build(model, batch)
        replica_step.prepare(model, clip_norm=args.clip_norm)
    sums = MetricSums(model)
    inner = InnerLoop(model, distribution, sums, local_replicas=local)
    iterator = iter(data)
    totals = sums.zeros()
    left = args.steps
    while left:
        steps = min(3, left)
        totals += inner.run(iterator, steps, [False]).sums
        left -= steps
    logs = sums.results(totals)
    if args.eval_examples:
        e = args.eval_examples
        low, high = (e * (cluster.rank + i) // cluster.num_workers for i in (0, 1))
        share_data = tf.data.Dataset.from_tensor_slices((x[low:high], y[low:high]))
        evaluator = Evaluator(model, distribution, sums, local_replicas=local)
        values = evaluator.run(share_data.batch(args.eval_batch))
        logs |= {f"val_{name}": value for name, value in values.items()}
    arrays = {**variables_of(model)}
    metrics = {id(v) for v in model.metrics_variables}
    for variable in model.variables:  # every local copy, so that none hides behind the first
        if hasattr(variable.value, "values") and id(variable) not in metrics:
            for i, copy in enumerate(variable.value.values):
                arrays[f"copy{i}/{variable.path}"] = copy.numpy()
    np.savez(args.out, **arrays, **as_arrays(logs))
    strategy.Exchange(distribution, cluster).barrier()


if __name__ == "__main__":
    main()
