"""Exact evaluation: every example once, whatever the batch size and number of workers.

    evaluator = Evaluator(model, strategy, metric_sums, local_replicas=1)
    logs = evaluator.run(dataset)            # {"loss": …, "accuracy": …}

A test step exchanges nothing, so workers may run different numbers of steps, also none;
what they counted is added up once at the end.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from trainer.metrics import MetricSums
from trainer.strategy import replica_id


class Evaluator:
    """Evaluates a built, compiled model on this worker's share of a data set."""

    def __init__(
        self,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        metric_sums: MetricSums,
        *,
        local_replicas: int,
    ):
        self._model = model
        self._strategy = strategy
        self._metric_sums = metric_sums
        self._local_replicas = local_replicas
        self._first_only = tf.function(self._on_first_replica)
        self._all = tf.function(self._on_all_replicas)
        self._drain = tf.function(self._drain_in_graph)

    def run(self, dataset: tf.data.Dataset) -> dict[str, float]:
        """Returns the metrics over all workers' `dataset`s, the same on every worker.

        Args:
          dataset: batches of this worker's share; the last one may be smaller, and there
            may be none.
        """
        for batch in dataset:
            size = tf.nest.flatten(batch)[0].shape[0]
            # Metrics weight each batch by its size, so replicas must share it evenly; what
            # does not divide is one replica's work.
            if size % self._local_replicas:
                self._first_only(batch)
            else:
                self._all(batch)
        return self._metric_sums.results(self._drain().numpy())

    def _on_all_replicas(self, batch: Any) -> None:
        count = self._local_replicas

        def test(whole: Any) -> None:
            index = replica_id() % count
            self._model.test_step(tf.nest.map_structure(lambda t: tf.split(t, count)[index], whole))

        self._strategy.run(test, args=(batch,))

    def _on_first_replica(self, batch: Any) -> None:
        count = self._local_replicas

        def test(whole: Any) -> None:
            if replica_id() % count == 0:
                self._model.test_step(whole)

        self._strategy.run(test, args=(batch,))

    def _drain_in_graph(self) -> tf.Tensor:
        results = self._strategy.run(self._metric_sums.drain)
        return self._strategy.experimental_local_results(results)[0]
