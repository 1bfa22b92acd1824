"""Metrics of the whole batch on every worker, from sums that travel once per loop.

    packed = MetricSums(model)
    sums = strategy.run(packed.drain)        # in the graph: reduce, then reset
    logs = packed.results(totals)            # {"loss": …, "accuracy": …}

Keras' metric variables only ever hold what the current loop added. The totals of an
epoch are kept outside, in float64 and identical on all workers, so a backup holds them
without asking anybody, and a restored run continues with the same bits.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import ConfigError


class MetricSums:
    """Packs a built model's metric variables into one vector, and back.

    Raises:
      ConfigError: a metric's variable is not a sum, so replicas cannot be added up.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._variables = list(model.metrics_variables)
        for variable in self._variables:
            if variable.aggregation != "sum":
                raise ConfigError(
                    f"metric variable {variable.path} has aggregation={variable.aggregation!r}: "
                    'only sums combine over workers; create it with aggregation="sum"'
                )
        self._sizes = [int(np.prod(v.shape)) for v in self._variables]
        self._results = tf.function(self._results_in_graph)

    def zeros(self) -> np.ndarray:
        """Returns the totals of nothing, float64 [size]."""
        return np.zeros(self.size, np.float64)

    @property
    def size(self) -> int:
        """Numbers in the packed vector."""
        return sum(self._sizes)

    def drain(self, *extra: tf.Tensor) -> tf.Tensor:
        """Sums all replicas' metric variables and sets them to zero; runs on a replica.

        Args:
          *extra: scalars that ride along, summed over the replicas.

        Returns:
          float64 [size + len(extra)], the same on every replica.
        """
        parts = [tf.reshape(tf.cast(v.value, tf.float64), [-1]) for v in self._variables]
        parts += [tf.reshape(tf.cast(x, tf.float64), [1]) for x in extra]
        for variable in self._variables:
            variable.assign(tf.zeros(variable.shape, variable.dtype))
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.concat(parts, 0))

    def results(self, totals: np.ndarray) -> dict[str, float]:
        """Returns the metrics of float64 [size] `totals`, as Python floats."""
        results = self._results(tf.constant(totals, tf.float64))
        return {name: float(value) for name, value in results.items()}

    def _results_in_graph(self, totals: tf.Tensor) -> dict[str, tf.Tensor]:
        values = [
            tf.cast(tf.reshape(part, v.shape), v.dtype)
            for v, part in zip(self._variables, tf.split(totals, self._sizes), strict=True)
        ]
        with keras.StatelessScope(state_mapping=zip(self._variables, values, strict=True)):
            return self._model.get_metrics_result()
