"""Small models with their raw features, for the tests of the export.

Each case is a function returning `Case`; weights are random, moving statistics are not
those of initialisation, so that a model served with other ones is found.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

NUM_EXAMPLES = 12


@dataclasses.dataclass
class Case:
    """What `export` is given; `golden` are raw features, [N, …]."""

    model: keras.Model
    preprocess: Callable[..., Any] | None
    raw_spec: dict[str, tf.TensorSpec]
    golden: dict[str, np.ndarray]

    def arguments(self) -> dict[str, Any]:
        return {"preprocess": self.preprocess, "raw_spec": self.raw_spec, "golden": self.golden}


def scale_image(features: dict[str, tf.Tensor]) -> tf.Tensor:
    return tf.cast(features["image"], tf.float32) / 255.0


def cnn(precision: str = "float32") -> Case:
    """uint8 [N, 12, 12, 1] -> softmax [N, 10], with BatchNorm and Dropout."""
    keras.utils.set_random_seed(3)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        model = keras.Sequential(
            [
                keras.Input((12, 12, 1)),
                keras.layers.Conv2D(8, 3, use_bias=False),
                keras.layers.BatchNormalization(),
                keras.layers.ReLU(),
                keras.layers.Flatten(),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
    finally:
        keras.config.set_dtype_policy(before)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    model.layers[1].moving_mean.assign(np.linspace(-0.2, 0.3, 8))
    model.layers[1].moving_variance.assign(np.linspace(0.5, 2, 8))
    images = np.random.default_rng(0).integers(0, 256, [NUM_EXAMPLES, 12, 12, 1], np.uint8)
    return Case(
        model, scale_image, {"image": tf.TensorSpec([12, 12, 1], tf.uint8)}, {"image": images}
    )


def cnn_bfloat16() -> Case:
    return cnn("mixed_bfloat16")


def jpeg() -> Case:
    """Encoded images of different sizes, decoded inside the served model; bytes end in zeros."""
    keras.utils.set_random_seed(4)
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2, name="scores")]
    )
    random = np.random.default_rng(1)
    encoded = [
        tf.io.encode_jpeg(random.integers(0, 256, [9 + i, 11, 3], np.uint8)).numpy() + b"\0\0"
        for i in range(NUM_EXAMPLES)
    ]

    def decode(features: dict[str, tf.Tensor]) -> tf.Tensor:
        image = tf.io.decode_jpeg(features["image/encoded"], channels=3)
        return tf.image.resize(image, [8, 8]) / 255.0

    return Case(
        model,
        decode,
        {"image/encoded": tf.TensorSpec([], tf.string)},
        {"image/encoded": np.array(encoded, object)},
    )


def named_ids() -> Case:
    """B50: one named int64 input, larger than float32 can hold; fixed batch size; dict output."""
    keras.utils.set_random_seed(5)
    ids = keras.Input((3,), batch_size=8, dtype="int64", name="user_ids")
    embedded = keras.layers.Embedding(50, 4)(keras.ops.mod(ids, 50))
    flat = keras.layers.Flatten()(embedded)
    model = keras.Model(
        ids, {"score": keras.layers.Dense(1)(flat), "class": keras.ops.argmax(flat, -1)}
    )
    values = np.random.default_rng(2).integers(2**40, 2**41, [NUM_EXAMPLES, 3])
    return Case(model, None, {"user_ids": tf.TensorSpec([3], tf.int64)}, {"user_ids": values})


def age_and_city() -> Case:
    """B50 and B52: dict inputs, one of strings through StringLookup; dict outputs."""
    keras.utils.set_random_seed(6)
    age = keras.Input((1,), name="age", batch_size=8)
    city = keras.Input((1,), name="city", dtype="string", batch_size=8)
    index = keras.layers.StringLookup(vocabulary=["Oslo", "Roma", "Wien"])(city)
    embedded = keras.layers.Flatten()(keras.layers.Embedding(4, 3)(index))
    joined = keras.layers.Concatenate()([age, embedded])
    model = keras.Model(
        {"age": age, "city": city},
        {"price": keras.layers.Dense(1)(joined), "risk": keras.layers.Dense(2)(joined)},
    )
    cities = np.array(["Oslo", "Roma", "Wien", "Atlantis"] * 3, object)[:, None]
    return Case(
        model,
        None,
        {"age": tf.TensorSpec([1], tf.float32), "city": tf.TensorSpec([1], tf.string)},
        {"age": np.arange(12, dtype=np.float32)[:, None], "city": cities},
    )


@functools.cache
def colours() -> tf.lookup.StaticHashTable:
    """A table that nothing but this module holds; not made on import, before a strategy is."""
    keys, values = ["red", "green"], tf.constant([1.0, 2.0])
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1.0)


class TwoHeads(keras.Model):
    """A subclassed model that returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.left = keras.layers.Dense(2)
        self.right = keras.layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.left(inputs["colour"]), self.right(inputs["size"])


def table_in_preprocess() -> Case:
    """B52: a table of the preprocess function's module; a subclassed model, two outputs."""
    colours()
    keras.utils.set_random_seed(7)
    model = TwoHeads()
    model({"colour": tf.zeros([1, 1]), "size": tf.zeros([1, 1])})

    def preprocess(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        colour = colours().lookup(features["colour"])
        return {"colour": colour[None], "size": tf.cast(features["size"], tf.float32)[None]}

    return Case(
        model,
        preprocess,
        {"colour": tf.TensorSpec([], tf.string), "size": tf.TensorSpec([], tf.int32)},
        {
            "colour": np.array([b"red", b"green", b"blue"] * 4, object),
            "size": np.arange(12, dtype=np.int32),
        },
    )


def random_answers() -> Case:
    """A model whose served answers can never equal the trained ones."""
    case = cnn()

    def noisy(features: dict[str, tf.Tensor]) -> tf.Tensor:
        return scale_image(features) + tf.random.normal([12, 12, 1])

    case.preprocess = noisy
    return case


CASES = (cnn, cnn_bfloat16, jpeg, named_ids, age_and_city, table_in_preprocess)
