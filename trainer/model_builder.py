"""From the configuration to a compiled, built Keras model, ready for the loop.

    with strategy.scope():
        model = build(config, batch_spec)

Options of Keras that cannot be exact with several replicas are refused here.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from trainer import compat, replica_step
from trainer.config import Experiment
from trainer.errors import ConfigError
from trainer.user_code import load


def build(config: Experiment, batch_spec: Any) -> keras.Model:
    """Seeds, builds and prepares the model; call under the strategy's scope.

    Args:
      config: `model`, `train.seed`, `train.precision` and `train.clip_norm` are used.
      batch_spec: tf.TensorSpecs of one batch, as the training data set yields it.

    Raises:
      ConfigError: the builder is not there, does not return a compiled Keras model, or
        the model uses an option that cannot be exact with several replicas.
    """
    keras.utils.set_random_seed(config.train.seed)
    keras.config.set_dtype_policy(config.train.precision)
    model = load(config.model.builder, field="model.builder")(**config.model.kwargs)
    where = f"model.builder={config.model.builder!r}"
    if not isinstance(model, keras.Model):
        raise ConfigError(f"{where} returned a {type(model).__name__}, not a keras.Model")
    if not model.compiled:
        raise ConfigError(f"{where} returned a model that is not compiled: call model.compile")
    optimizer = model.optimizer
    if optimizer.gradient_accumulation_steps:
        raise ConfigError(
            f"{where}: gradient_accumulation_steps={optimizer.gradient_accumulation_steps} does "
            "not work under tf.distribute; leave it out and use a larger global batch"
        )
    if model.jit_compile is True:
        raise ConfigError(
            f"{where}: jit_compile=True fails under tf.distribute; compile with jit_compile=False"
        )
    if model.steps_per_execution != 1:
        raise ConfigError(
            f"{where}: steps_per_execution={model.steps_per_execution}; leave it out and set "
            "train.steps_per_loop"
        )
    batch = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), batch_spec)
    compat.build(model, batch)
    replica_step.prepare(model, clip_norm=config.train.clip_norm)
    return model
