"""Residual networks: ResNet-20 for small images, ResNet-50 (v1.5) for large ones.

    model = build(depth=20, input_shape=(32, 32, 3), num_classes=10)

ResNet-20 follows section 4.2 of https://arxiv.org/abs/1512.03385, with 1x1 convolutions
as shortcuts where the size changes. ResNet-50 is "v1.5": the stride is in the 3x3
convolution of a block, not in the first 1x1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import layers

from trainer.errors import ConfigError
from trainer.models.classifier import compile_classifier, logits
from trainer.models.schedules import learning_rate as rate


def build(
    *,
    depth: int,
    input_shape: Sequence[int],
    num_classes: int,
    learning_rate: float | Mapping[str, Any] = 0.1,
    momentum: float = 0.9,
    l2: float = 1e-4,
    synchronized_batch_norm: bool = False,
) -> keras.Model:
    """Returns the compiled model.

    Args:
      depth: 20 or 50.
      input_shape: (H, W, C).
      num_classes: labels are integers from 0 to num_classes - 1.
      learning_rate: of SGD; see `schedules.learning_rate`.
      momentum: of SGD, Nesterov's form.
      l2: weight of the kernels' L2 penalty.
      synchronized_batch_norm: normalise by the statistics of the global batch rather than
        the replica's part of it; costs a collective per layer and step, and is worth it
        where that part is small (under about 16).

    The model maps float32 [N, H, W, C] to logits float32 [N, num_classes].

    Raises:
      ConfigError: there is no ResNet of that depth.
    """
    if depth not in (20, 50):
        raise ConfigError(f"model.kwargs.depth={depth!r}: must be 20 or 50")
    unit = _Unit(l2, synchronized_batch_norm)
    inputs = layers.Input(tuple(input_shape), name="image")
    features = _resnet20(unit, inputs) if depth == 20 else _resnet50(unit, inputs)
    x = layers.GlobalAveragePooling2D()(features)
    model = keras.Model(inputs, logits(x, num_classes), name=f"resnet{depth}")
    optimizer = keras.optimizers.SGD(rate(learning_rate), momentum=momentum, nesterov=True)
    return compile_classifier(model, optimizer)


def _resnet20(unit: _Unit, x: Any) -> Any:
    """[N, H, W, C] -> [N, H/4, W/4, 64]."""
    x = unit(x, 16, 3)
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            stride = 2 if stage and not block else 1
            shortcut = x if stride == 1 else unit(x, filters, 1, stride, relu=False)
            x = unit(x, filters, 3, stride)
            x = unit(x, filters, 3, relu=False)
            x = layers.ReLU()(layers.Add()([x, shortcut]))
    return x


def _resnet50(unit: _Unit, x: Any) -> Any:
    """[N, H, W, C] -> [N, H/32, W/32, 2048]."""
    x = unit(x, 64, 7, 2)
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for stage, (filters, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            shortcut = x if block else unit(x, 4 * filters, 1, stride, relu=False)
            x = unit(x, filters, 1)
            x = unit(x, filters, 3, stride)
            # Each block begins as the identity, which steadies large batches
            # (https://arxiv.org/abs/1706.02677, section 5.1).
            x = unit(x, 4 * filters, 1, relu=False, gamma="zeros")
            x = layers.ReLU()(layers.Add()([x, shortcut]))
    return x


class _Unit:
    """Convolution, batch normalisation and, unless told otherwise, ReLU."""

    def __init__(self, l2: float, synchronized: bool):
        self._penalty = keras.regularizers.L2(l2) if l2 else None
        self._synchronized = synchronized

    def __call__(
        self,
        x: Any,
        filters: int,
        size: int,
        stride: int = 1,
        *,
        relu: bool = True,
        gamma: str = "ones",
    ) -> Any:
        x = layers.Conv2D(
            filters,
            size,
            strides=stride,
            padding="same",
            use_bias=False,
            kernel_initializer="he_normal",
            kernel_regularizer=self._penalty,
        )(x)
        x = layers.BatchNormalization(
            momentum=0.9,
            epsilon=1e-5,
            gamma_initializer=gamma,
            synchronized=self._synchronized,
        )(x)
        return layers.ReLU()(x) if relu else x
