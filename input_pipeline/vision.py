"""Graph code for images: what `data.preprocess` and `data.augment` of the configs name.

    model_input = scale_255({"image": image})
    model_input = shift_and_flip(model_input, seed)

Preprocessing runs inside the served model too; augmentation only in training.
"""

from __future__ import annotations

import tensorflow as tf

_SHIFT = 2


def scale_16(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns `features["image"]`, of values 0..16, as float32 0..1 of the same shape."""
    return tf.cast(features["image"], tf.float32) / 16.0


def scale_255(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns `features["image"]`, of values 0..255, as float32 0..1 of the same shape."""
    return tf.cast(features["image"], tf.float32) / 255.0


def shift_and_flip(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Moves an image by up to 2 pixels each way and mirrors half of them.

    Args:
      image: [H, W, C]; what moves in is 0.
      seed: int32 [2]; the result is a function of it and the image alone.

    Returns:
      [H, W, C], same type.
    """
    # One seed for both would tie the direction to the mirroring.
    seeds = tf.random.split(seed, 2)
    padded = tf.pad(image, [[_SHIFT, _SHIFT], [_SHIFT, _SHIFT], [0, 0]])
    moved = tf.image.stateless_random_crop(padded, tf.shape(image), seeds[0])
    moved = tf.ensure_shape(moved, image.shape)
    return tf.image.stateless_random_flip_left_right(moved, seeds[1])
