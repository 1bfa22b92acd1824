"""What a model without `data.preprocess` is fed, in training and in the served model alike.

x = model_input({"image": image})        # float32, the tensor itself
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# Wider integers are ids and tokens, which float32 could not hold.
_SMALL = (tf.uint8, tf.int8, tf.uint16, tf.int16, tf.bool)


def model_input(features: dict[str, tf.Tensor]) -> Any:
    """Returns a single feature by itself, several as the dict they are.

    A single one becomes float32 if it holds floats or integers of up to 16 bits, such as
    pixels.
    """
    if len(features) != 1:
        return features
    (value,) = features.values()
    small = value.dtype.is_floating or value.dtype in _SMALL
    return tf.cast(value, tf.float32) if small else value
