"""The inner loop: some steps in one graph call.

    inner = InnerLoop(model, strategy, metric_sums)
    output = inner.run(iterator, steps=10)

It knows only a number of steps; epochs, callbacks and backups belong to `loop.py`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.metrics import MetricSums
from trainer.replica_step import replica_step


@dataclasses.dataclass(frozen=True)
class LoopOutput:
    """What some steps left behind; `sums` and `flags` are the same on every worker."""

    sums: np.ndarray
    """float64 [MetricSums.size]: what these steps added to the metrics."""

    flags: np.ndarray
    """bool [n]: whether any worker raised each flag before these steps."""

    input_s: float
    """Seconds this worker waited for its input."""

    run_s: float
    """Seconds of the whole call, input included."""


class InnerLoop:
    """Runs training steps of a built, compiled model under a strategy."""

    def __init__(
        self,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        metric_sums: MetricSums,
        *,
        local_replicas: int,
    ):
        self._metric_sums = metric_sums
        self._strategy = strategy
        self._local_replicas = local_replicas
        self._step = replica_step(model, strategy.num_replicas_in_sync)
        self._steps = tf.function(self._steps_in_graph)
        self._drain = tf.function(self._drain_in_graph)

    def run(self, iterator: Iterator, steps: int, flags: list[bool]) -> LoopOutput:
        """Runs `steps` steps and returns what they add to the metrics.

        Args:
          iterator: of a tf.data.Dataset; yields this worker's batches.
          steps: number of steps, the same on every worker.
          flags: this worker's flags; raised for all if any worker raises one.
        """
        start = time.perf_counter()
        if self._local_replicas == 1:
            input_s = self._steps(iterator, tf.constant(steps))
        else:
            # TensorFlow cannot place a `while` body on several local devices ("must feed
            # a value for placeholder"), so the loop over steps stays in Python.
            input_s = sum(self._steps(iterator, tf.constant(1)) for _ in range(steps))
        drained = self._drain(tf.constant(flags, tf.float64)).numpy()
        size = self._metric_sums.size
        return LoopOutput(
            sums=drained[:size],
            flags=drained[size:] > 0,
            input_s=float(input_s),
            run_s=time.perf_counter() - start,
        )

    def _steps_in_graph(self, iterator: Any, steps: tf.Tensor) -> tf.Tensor:
        input_s = tf.zeros([], tf.float64)
        if self._local_replicas > 1:
            return input_s + self._one_step(iterator)
        for _ in tf.range(steps):
            input_s += self._one_step(iterator)
        return input_s

    def _one_step(self, iterator: Any) -> tf.Tensor:
        # A clock is not a side effect to TensorFlow: without these dependencies both times
        # are read at once.
        before = tf.timestamp()
        with tf.control_dependencies([before]):
            batch = next(iterator)
        with tf.control_dependencies(tf.nest.flatten(batch)):
            waited = tf.timestamp() - before
        self._strategy.run(self._step, args=(self._per_replica(batch),))
        return waited

    def _per_replica(self, batch: Any) -> Any:
        """Splits a worker's batch evenly over its replicas."""
        count = self._local_replicas
        if count == 1:
            return batch

        def part(context: tf.distribute.ValueContext) -> Any:
            index = context.replica_id_in_sync_group % count
            return tf.nest.map_structure(lambda t: tf.split(t, count)[index], batch)

        return self._strategy.experimental_distribute_values_from_function(part)

    def _drain_in_graph(self, flags: tf.Tensor) -> tf.Tensor:
        def drain() -> tf.Tensor:
            return self._metric_sums.drain(*tf.unstack(flags))

        return self._strategy.experimental_local_results(self._strategy.run(drain))[0]
