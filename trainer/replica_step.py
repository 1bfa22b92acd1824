"""One training step on one replica: the model's own `train_step`, made exact for many.

    prepare(model, clip_norm=1.0)
    strategy.run(replica_step(model, replicas), args=(batch,))

Keras' `train_step` scales the loss by the number of replicas and lets the optimizer sum
the gradients. Three things are missing for N replicas to equal one, and are added here:
clipping of the *summed* gradient, moving statistics that agree, and dropout noise that
differs between replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from trainer import compat
from trainer.strategy import replica_id

# Far apart, so that no two replicas' seeds meet while steps count up; odd, so that every
# replica's offset differs modulo 2**32.
_SEED_STRIDE = 0x9E3779B1


def prepare(model: keras.Model, *, clip_norm: float | None) -> None:
    """Builds the optimizer's variables and makes it reduce and clip in the right order.

    Args:
      model: compiled and built; call under the strategy's scope.
      clip_norm: global norm to clip the gradient of the whole batch to, or None.
    """
    optimizer = model.optimizer
    if not optimizer.built:
        optimizer.build(model.trainable_variables)

    def clip(gradients: list[Any]) -> list[Any]:
        return tf.clip_by_global_norm(gradients, clip_norm)[0]

    compat.reduce_before_apply(optimizer, _all_reduce, clip if clip_norm else None)


def finish(model: keras.Model) -> None:
    """Gives the weights their final values, as `fit` does at its end (`use_ema`).

    After the last backup: a run that is continued needs the values before this.
    """
    model.optimizer.finalize_variable_values(model.trainable_weights)


def _all_reduce(gradients: list[Any]) -> list[Any]:
    context = tf.distribute.get_replica_context()
    if context is None or not gradients:
        return gradients
    return context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)


def replica_step(model: keras.Model, num_replicas: int) -> Callable[[Any], None]:
    """Returns the function that `strategy.run` runs on each replica's batch.

    Results are left in the model's metrics; see `metrics.py`.
    """
    if num_replicas == 1:

        def alone(batch: Any) -> None:
            model.train_step(batch)

        return alone

    moving = compat.forward_state(model)
    seeds = _seed_states(model)

    def step(batch: Any) -> None:
        before = [tf.identity(v.value) for v in moving]
        _shift_seeds(seeds, +1)
        model.train_step(batch)
        # Back to the common state: every replica stores, and backs up, the same one.
        _shift_seeds(seeds, -1)
        _average_changes(moving, before, num_replicas)

    return step


def _seed_states(model: keras.Model) -> list[Any]:
    """Returns the state, int [2], of every random-seed generator of the model."""
    others = {id(v) for v in [*model.weights, *model.metrics_variables]}
    return [v for v in model.variables if id(v) not in others and v.name == "seed_generator_state"]


def _shift_seeds(seeds: list[Any], sign: int) -> None:
    offset = sign * replica_id() * _SEED_STRIDE
    for seed in seeds:
        seed.assign(seed.value + tf.constant([offset, 0], seed.dtype))


def _average_changes(variables: list[Any], before: list[tf.Tensor], num_replicas: int) -> None:
    """Replaces each variable by its old value plus the mean change over the replicas.

    Averaging the change, not the value, leaves what no layer touched bit for bit as it
    was. All changes travel in one collective.
    """
    if not variables:
        return
    change = tf.concat(
        [
            tf.reshape(tf.cast(v.value - old, tf.float32), [-1])
            for v, old in zip(variables, before, strict=True)
        ],
        axis=0,
    )
    context = tf.distribute.get_replica_context()
    change = context.all_reduce(tf.distribute.ReduceOp.SUM, change) / num_replicas
    sizes = [tf.size(old) for old in before]
    for v, old, part in zip(variables, before, tf.split(change, sizes), strict=True):
        v.assign(old + tf.cast(tf.reshape(part, tf.shape(old)), old.dtype))
