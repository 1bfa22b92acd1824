"""Sources that are read by index: one order, whoever reads it and wherever it begins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import pipeline
from input_pipeline.order import record_indices
from input_pipeline.sources.base import Source
from tests import input_sources
from tests.input_sources import N, config, evaluate, read, read_ids
from trainer.errors import ConfigError

# 25 examples in batches of 12: these steps are 12 epochs, of which most begin in mid-batch.
STEPS = (0, 25)


@pytest.fixture(scope="module", params=["memory", "array_record", "cached"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Source:
    kind = "array_record" if request.param == "cached" else request.param
    address = input_sources.write_source(kind, tmp_path_factory.mktemp("records"))
    return pipeline.open_source(config(cache=request.param == "cached"), address)


def order_of(epochs: int, n: int, seed: int = 0) -> np.ndarray:
    """Returns the records of the first epochs: [epochs, n]."""
    positions = tf.range(epochs * n, dtype=tf.int64)
    return record_indices(positions, n, seed=seed).numpy().reshape(epochs, n)


def test_the_order_is_that_of_earlier_versions() -> None:
    """A run that an older version backed up must go on in the same order."""
    assert order_of(2, 7).tolist() == [[2, 3, 5, 6, 1, 0, 4], [3, 6, 0, 4, 2, 5, 1]]
    assert order_of(2, 7, seed=7)[1].tolist() == [3, 2, 6, 1, 4, 5, 0]
    assert order_of(1, 7, seed=2**31).tolist() == [[3, 5, 1, 2, 4, 6, 0]]


@pytest.mark.parametrize("n", [25, 97])
def test_no_order_comes_again(n: int) -> None:
    """As keys of the cipher, epoch 0 and 256 would be the same, and so would such seeds."""
    orders = order_of(1500, n)
    assert len(np.unique(orders, axis=0)) == 1500
    others = [order_of(1, n, seed=2**bit)[0] for bit in range(32)]
    assert len(np.unique([orders[0], *others], axis=0)) == 33
    # Each record stands at the beginning equally often: chi squared over its mean is near 1.
    counts = np.bincount(orders[:, 0], minlength=n)
    assert ((counts - 1500 / n) ** 2 / (1500 / n)).sum() / (n - 1) < 1.7


@pytest.mark.parametrize("n", [1, 2, 3, 7, 97, 1437, 5000])
def test_every_epoch_is_a_permutation_far_from_sorted(n: int) -> None:
    orders = np.concatenate([order_of(3, n, seed=seed) for seed in (0, 7)])
    np.testing.assert_array_equal(np.sort(orders, 1), np.tile(np.arange(n), (6, 1)))
    if n > 50:
        # Of independent orders the correlation is normal with deviation 1 / sqrt(n).
        correlation = np.corrcoef(np.vstack([np.arange(n), orders])) - np.eye(7)
        assert np.abs(correlation).max() < 4.5 / np.sqrt(n)


def test_every_example_comes_once_an_epoch(source: Source) -> None:
    ids = np.reshape(read_ids(source, config(), STEPS), (12, N))
    np.testing.assert_array_equal(np.sort(ids, 1), np.tile(np.arange(N), (12, 1)))
    assert len({tuple(epoch) for epoch in ids.tolist()}) == 12
    tf.random.set_seed(1)
    assert read_ids(source, config(), STEPS) == ids.ravel().tolist()
    assert read_ids(source, config(), STEPS, seed=1) != ids.ravel().tolist()


def test_augmented_values_are_equal_bit_by_bit(source: Source) -> None:
    augmented = config(augment="tests.input_sources:noisy")
    whole, _ = read(source, augmented, STEPS)
    np.testing.assert_array_equal(np.floor(whole), read_ids(source, config(), STEPS))
    assert len(np.unique(whole % 1)) > 0.99 * len(whole)
    for start, workers in ((0, 2), (9, 3), (24, 4)):
        rest, _ = read(source, augmented, (start, 25), workers=workers)
        np.testing.assert_array_equal(rest, whole[start * 12 :])
    assert not (read(source, augmented, STEPS, seed=1)[0] % 1 == whole % 1).any()


def test_only_what_is_left_is_prepared(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def note(x: np.ndarray) -> np.ndarray:
        seen.append(int(x))
        return x

    def noted(features: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(note, [features["id"]], tf.int64), [])

    monkeypatch.setattr(input_sources, "id_of", noted)
    ids = read_ids(source, config(), (23, 25))
    assert sorted(seen) == sorted(ids)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_evaluation_reads_every_example_once(source: Source, workers: int) -> None:
    batches = evaluate(source, config(), workers=workers)
    assert np.concatenate([x for x, _ in batches]).tolist() == list(range(N))
    assert max(len(x) for x, _ in batches) <= 4


def test_strings_keep_their_last_zero_bytes(source: Source) -> None:
    raw = pipeline.raw_examples(source, config(), 1000)
    assert raw.keys() == {"id", "weight", "blob"}
    assert raw["blob"].tolist() == [input_sources.blob(i) for i in range(N)]
    assert pipeline.raw_examples(source, config(), 3)["weight"].tolist() == [1, 1.125, 1.25]


def test_examples_that_vary_in_shape_are_not_cached(tmp_path: Path) -> None:
    address = input_sources.write_source("array_record", tmp_path)
    varying = config(features="tests.input_sources:with_length", cache=True)
    with pytest.raises(ConfigError, match=r"data\.cache=True: .*'zeros' varies"):
        pipeline.open_source(varying, address)


def test_raw_examples_are_of_one_shape(tmp_path: Path) -> None:
    varying = config(features="tests.input_sources:with_length")
    source = pipeline.open_source(varying, input_sources.write_source("array_record", tmp_path))
    raw = pipeline.raw_examples(source, varying, 7)
    assert raw["id"].tolist() == [0, 3, 6]
    assert raw["zeros"].shape == (3, 0)
