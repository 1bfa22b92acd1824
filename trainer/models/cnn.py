"""A small convolutional network for small images.

    model = build(input_shape=(8, 8, 1), num_classes=10, learning_rate=0.001)

Two 3x3 convolutions for each entry of `filters`, halving the image after each pair.
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
    input_shape: Sequence[int],
    num_classes: int,
    learning_rate: float | Mapping[str, Any] = 0.001,
    filters: Sequence[int] = (32, 64),
    dense_units: int = 128,
    batch_norm: bool = True,
    dropout: float = 0.0,
    l2: float = 0.0,
) -> keras.Model:
    """Returns the compiled model.

    Args:
      input_shape: (H, W, C); H and W at least 2 ** len(filters).
      num_classes: labels are integers from 0 to num_classes - 1.
      learning_rate: of Adam; see `schedules.learning_rate`.
      filters: channels of each pair of convolutions.
      dense_units: width of the hidden layer before the output.
      batch_norm: normalise after each convolution.
      dropout: share dropped after each pair and before the output.
      l2: weight of the kernels' L2 penalty.

    The model maps float32 [N, H, W, C], scaled to about 0..1, to logits float32
    [N, num_classes].
    """
    penalty = keras.regularizers.L2(l2) if l2 else None
    inputs = layers.Input(tuple(input_shape), name="image")
    x = inputs
    for channels in filters:
        for _ in range(2):
            x = layers.Conv2D(
                channels, 3, padding="same", use_bias=not batch_norm, kernel_regularizer=penalty
            )(x)
            if batch_norm:
                x = layers.BatchNormalization(momentum=0.9)(x)
            x = layers.ReLU()(x)
        x = layers.MaxPooling2D(2)(x)
        if dropout:
            x = layers.Dropout(dropout)(x)
    x = layers.Flatten()(x)
    x = layers.Dense(dense_units, activation="relu", kernel_regularizer=penalty)(x)
    if dropout:
        x = layers.Dropout(dropout)(x)
    model = keras.Model(inputs, logits(x, num_classes), name="cnn")
    return compile_classifier(model, keras.optimizers.Adam(rate(learning_rate)))
