"""A multilayer perceptron for tabular data.

    model = build(num_features=13, num_classes=3)

Features should be of about unit scale; do that in `data.preprocess`, which is served too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import layers

from trainer.models.classifier import compile_classifier, logits
from trainer.models.schedules import learning_rate as rate


def build(
    *,
    num_features: int,
    num_classes: int,
    learning_rate: float | Mapping[str, Any] = 0.001,
    hidden: Sequence[int] = (64, 64),
    batch_norm: bool = False,
    dropout: float = 0.0,
) -> keras.Model:
    """Returns the compiled model.

    Args:
      num_features: F, numbers of an example.
      num_classes: labels are integers from 0 to num_classes - 1.
      learning_rate: of Adam; see `schedules.learning_rate`.
      hidden: width of each hidden layer.
      batch_norm: normalise before each activation.
      dropout: share dropped after each hidden layer.

    The model maps float32 [N, F] to logits float32 [N, num_classes].
    """
    inputs = layers.Input((num_features,), name="features")
    x = inputs
    for units in hidden:
        x = layers.Dense(units, use_bias=not batch_norm)(x)
        if batch_norm:
            x = layers.BatchNormalization(momentum=0.9)(x)
        x = layers.ReLU()(x)
        if dropout:
            x = layers.Dropout(dropout)(x)
    model = keras.Model(inputs, logits(x, num_classes), name="mlp")
    return compile_classifier(model, keras.optimizers.Adam(rate(learning_rate)))
