"""The reference models: shapes, precision, size, and that they learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import vision
from trainer.errors import ConfigError
from trainer.models import cnn, mlp, resnet, transformer
from trainer.models.schedules import learning_rate

CLASSES = 3


def images(n: int) -> np.ndarray:
    return np.random.default_rng(0).random((n, 8, 8, 1), np.float32)


def tokens(n: int) -> np.ndarray:
    ids = np.random.default_rng(0).integers(1, 50, (n, 12), np.int32)
    ids[:, 8:] = 0
    return ids


def numbers(n: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, 5)).astype(np.float32)


TEXT = {"sequence_length": 12, "vocabulary_size": 50, "width": 16, "feed_forward": 32}
MODELS: dict[str, tuple[Callable[..., keras.Model], dict[str, Any], Callable]] = {
    "cnn": (cnn.build, {"input_shape": (8, 8, 1), "filters": (8, 16)}, images),
    "cnn_plain": (
        cnn.build,
        {"input_shape": [8, 8, 1], "filters": [8], "batch_norm": False, "l2": 1e-4},
        images,
    ),
    "cnn_dropout": (cnn.build, {"input_shape": (8, 8, 1), "dropout": 0.1}, images),
    "resnet20": (resnet.build, {"depth": 20, "input_shape": (8, 8, 1)}, images),
    "transformer": (transformer.build, TEXT | {"learning_rate": 3e-3}, tokens),
    "mlp": (mlp.build, {"num_features": 5, "learning_rate": 0.01}, numbers),
    "mlp_full": (mlp.build, {"num_features": 5, "batch_norm": True, "dropout": 0.1}, numbers),
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    keras.utils.set_random_seed(1)
    yield
    keras.config.set_dtype_policy("float32")
    keras.backend.clear_session()


@pytest.mark.parametrize("name", MODELS)
def test_shapes_and_learning(name: str) -> None:
    build, kwargs, data = MODELS[name]
    model = build(num_classes=CLASSES, **kwargs)
    x, y = data(32), np.arange(32) % CLASSES
    assert model.output_shape == (None, CLASSES)
    assert model(x[:4]).shape == (4, CLASSES)
    history = model.fit(x, y, batch_size=32, epochs=12, verbose=0).history
    assert history["loss"][-1] < 0.97 * history["loss"][0]
    assert "accuracy" in history


@pytest.mark.parametrize("name", MODELS)
def test_same_seed_same_weights(name: str) -> None:
    build, kwargs, _ = MODELS[name]
    weights = []
    for _ in range(2):
        keras.utils.set_random_seed(7)
        weights.append(build(num_classes=CLASSES, **kwargs).get_weights())
    assert all(np.array_equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.parametrize("name", ["cnn", "resnet20", "transformer", "mlp_full"])
def test_mixed_precision_answers_in_float32(name: str) -> None:
    build, kwargs, data = MODELS[name]
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = build(num_classes=CLASSES, **kwargs)
    assert any(layer.compute_dtype == "bfloat16" for layer in model.layers)
    assert all(v.dtype == "float32" for v in model.trainable_variables)
    assert model(data(4)).dtype == tf.float32
    assert np.isfinite(model.fit(data(8), np.zeros(8), verbose=0).history["loss"][0])


def test_sizes() -> None:
    resnet20 = resnet.build(depth=20, input_shape=(32, 32, 3), num_classes=10)
    resnet50 = resnet.build(depth=50, input_shape=(224, 224, 3), num_classes=1000)
    assert resnet20.count_params() == pytest.approx(0.27e6, rel=0.02)
    trainable = sum(int(np.prod(v.shape)) for v in resnet50.trainable_variables)
    assert trainable == 25_557_032
    assert resnet50.layers[-3].output.shape == (None, 7, 7, 2048)


def test_synchronized_batch_norm_is_passed_on() -> None:
    model = resnet.build(
        depth=20, input_shape=(8, 8, 1), num_classes=2, synchronized_batch_norm=True
    )
    norms = [v for v in model.layers if isinstance(v, keras.layers.BatchNormalization)]
    assert norms
    assert all(norm.synchronized for norm in norms)


def test_padding_changes_nothing() -> None:
    model = transformer.build(num_classes=CLASSES, **TEXT)
    short = tokens(2)
    alone = model(short[:1])
    short[1] = 0
    np.testing.assert_allclose(model(short)[:1], alone, rtol=1e-5)
    assert np.isfinite(model(short)).all()
    # A padded position's embedding is never seen.
    table = model.get_layer("token_embedding").embeddings
    table.assign(tf.tensor_scatter_nd_update(table, [[0]], [[9.0] * 16]))
    np.testing.assert_allclose(model(short)[:1], alone, rtol=1e-5)


def test_models_are_saved_and_loaded(tmp_path: Any) -> None:
    model = transformer.build(num_classes=CLASSES, **TEXT)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(tokens(2)), model(tokens(2)))


# Learning rates


def test_warm_up_and_cosine_decay() -> None:
    schedule = learning_rate({"peak": 0.1, "steps": 100, "warmup_steps": 10, "final": 0.01})
    values = [float(schedule(step)) for step in (0, 5, 10, 55, 100, 200)]
    np.testing.assert_allclose(values, [0, 0.05, 0.1, 0.055, 0.01, 0.01], rtol=1e-5)
    plain = learning_rate({"peak": 0.1, "steps": 100})
    np.testing.assert_allclose([float(plain(s)) for s in (0, 50, 100)], [0.1, 0.05, 0], atol=1e-7)
    assert learning_rate(1) == 1.0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "learning_rate=0: must be more than 0"),
        ("0.1", "learning_rate='0.1'"),
        ({"peak": 0.1}, "learning_rate.steps=None"),
        ({"peak": 0.1, "steps": 10, "warmup": 1}, "learning_rate.warmup: no such key"),
        ({"peak": 0.1, "steps": 10, "warmup_steps": 10}, "warmup_steps=10"),
        ({"peak": 0.1, "steps": 10, "final": 1.0}, "final=1.0"),
    ],
)
def test_wrong_learning_rates_are_named(value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        learning_rate(value)
    assert words in str(caught.value)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match="depth=18: must be 20 or 50"):
        resnet.build(depth=18, input_shape=(8, 8, 1), num_classes=2)
    with pytest.raises(ConfigError, match="width=10: must be a multiple of num_heads=4"):
        transformer.build(num_classes=2, **TEXT | {"width": 10})


# Images


def test_scaling() -> None:
    image = np.full((8, 8, 1), 8, np.uint8)
    assert float(tf.reduce_max(vision.scale_16({"image": image}))) == 0.5
    scaled = vision.scale_255({"image": np.full((2, 2, 1), 255, np.uint8)})
    assert scaled.dtype == tf.float32
    assert float(tf.reduce_min(scaled)) == 1.0


def test_augmentation_is_a_function_of_the_seed() -> None:
    image = tf.reshape(tf.range(1.0, 101.0), (10, 10, 1))
    augment = tf.function(vision.shift_and_flip)
    results = [augment(image, tf.constant([3, i])).numpy() for i in range(40)]
    np.testing.assert_array_equal(augment(image, tf.constant([3, 5])), results[5])
    assert results[0].shape == (10, 10, 1)
    assert len({r.tobytes() for r in results}) > 20
    mirrored = sum(r[5, 4, 0] > r[5, 5, 0] for r in results)
    assert 8 < mirrored < 32
    # The middle is never moved out.
    assert all(set(range(45, 47)) <= set(r.ravel().astype(int)) for r in results)
