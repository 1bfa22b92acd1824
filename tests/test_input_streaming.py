"""Files read from front to back: every record once, each worker its own part of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import pipeline, streaming
from input_pipeline.order import Share
from input_pipeline.sources.base import Streamed
from tests import input_sources
from tests.input_sources import config, evaluate, read, read_ids
from trainer.errors import ConfigError, DataError


def opened(directory: Path, sizes: list[int]) -> Streamed:
    """Returns an open source; every third of its files is compressed."""
    source = pipeline.open_source(config(), input_sources.write_tfrecords(directory, sizes))
    assert isinstance(source, Streamed)
    assert source.num_examples == sum(sizes)
    return source


@pytest.mark.parametrize(
    ("sizes", "workers"),
    [
        ([14], 2),
        ([14], 4),
        ([10, 10], 3),
        ([10] * 8, 3),
        ([10] * 8, 2),
        ([1, 30, 2, 7], 2),
        ([40, 1, 1], 4),
        ([5, 4, 3], 1),
    ],
)
def test_all_workers_together_read_every_record_once_an_epoch(
    tmp_path: Path, sizes: list[int], workers: int
) -> None:
    source = opened(tmp_path, sizes)
    n = source.num_examples
    end = 2 * n // 12 + 1
    ids = read_ids(source, config(), (0, end), workers=workers)
    assert sorted(ids[:n]) == sorted(ids[n : 2 * n]) == list(range(n))
    assert ids[:n] != ids[n : 2 * n]
    middle = end // 2
    assert read_ids(source, config(), (middle, end), workers=workers) == ids[middle * 12 :]


def test_a_run_may_begin_again_at_any_step(tmp_path: Path) -> None:
    source = opened(tmp_path, [1, 30, 2, 7])
    ids = read_ids(source, config(), (0, 8), workers=3)
    for start in (1, 3, 4, 7):
        assert read_ids(source, config(), (start, 8), workers=3) == ids[start * 12 :]


def test_the_order_follows_the_seed_alone(tmp_path: Path) -> None:
    source = opened(tmp_path, [1, 30, 2, 7])
    ids = read_ids(source, config(), (0, 7), workers=2)
    for global_seed in (0, 1):
        tf.random.set_seed(global_seed)
        expected = tf.random.uniform([2]).numpy()
        tf.random.set_seed(global_seed)
        assert read_ids(source, config(), (0, 7), workers=2) == ids
        # Nor is the process' own randomness touched.
        np.testing.assert_array_equal(tf.random.uniform([2]), expected)
    assert read_ids(source, config(), (0, 7), workers=2, seed=1) != ids


def test_without_shuffling_each_worker_reads_its_range_in_the_order_of_the_files(
    tmp_path: Path,
) -> None:
    source = opened(tmp_path, [1, 30, 2, 3])
    plain = config(shuffle=False)
    assert read_ids(source, plain, (0, 6)) == [*range(36), *range(36)]
    by_step = np.reshape(read_ids(source, plain, (0, 6), workers=3), (6, 3, 4))
    for worker in range(3):
        mine = list(range(12 * worker, 12 * worker + 12))
        assert by_step[:, worker].ravel().tolist() == mine + mine


@pytest.mark.parametrize("worker", [0, 1])
def test_with_enough_files_each_worker_opens_only_its_own(tmp_path: Path, worker: int) -> None:
    source = opened(tmp_path, [10] * 8)
    epoch = 1
    paths, compressions, skips, takes = streaming.plan_epoch(
        source, Share(16, 2, worker), epoch, seed=0, shuffle=True
    )
    assert len(set(paths)) == 4
    assert (skips.tolist(), takes.tolist()) == ([0] * 4, [10] * 4)
    assert [c == b"GZIP" for c in compressions] == [path[-1:] in b"25" for path in paths]
    for file in source.files:
        if file.path.encode() not in paths:
            Path(file.path).unlink()
    dataset = pipeline.train_dataset(
        source,
        config(),
        seed=0,
        global_batch_size=16,
        num_workers=2,
        worker=worker,
        local_replicas=1,
        start_step=5 * epoch,
        end_step=5 * epoch + 5,
    )
    ids = np.concatenate([x for x, _ in dataset.as_numpy_iterator()])
    files = [int(path[-1:]) for path in paths]
    assert sorted(ids) == sorted(10 * file + i for file in files for i in range(10))


def test_workers_share_the_files_of_an_epoch_in_one_order(tmp_path: Path) -> None:
    source = opened(tmp_path, [10] * 8)
    orders = []
    for epoch in range(4):
        shares = [Share(16, 2, worker) for worker in range(2)]
        plans = [streaming.plan_epoch(source, s, epoch, seed=0, shuffle=True) for s in shares]
        orders.append([*plans[0][0], *plans[1][0]])
        assert len(set(orders[-1])) == 8
    assert len({tuple(order) for order in orders}) == 4


def test_augmented_values_continue_after_a_restart(tmp_path: Path) -> None:
    source = opened(tmp_path, [1, 30, 2, 7])
    augmented = config(augment="tests.input_sources:noisy")
    whole, _ = read(source, augmented, (0, 10), workers=2)
    rest, _ = read(source, augmented, (7, 10), workers=2)
    np.testing.assert_array_equal(rest, whole[7 * 12 :])
    assert len(np.unique(whole)) == len(whole)


@pytest.mark.parametrize(("sizes", "workers"), [([3], 2), ([3], 4), ([4, 18, 3], 3), ([1] * 5, 2)])
def test_evaluation_reads_every_record_once(tmp_path: Path, sizes: list[int], workers: int) -> None:
    source = opened(tmp_path, sizes)
    batches = evaluate(source, config(), workers=workers)
    assert np.concatenate([x for x, _ in batches]).tolist() == list(range(sum(sizes)))
    assert max(len(x) for x, _ in batches) <= 4


def test_strings_keep_their_last_zero_bytes(tmp_path: Path) -> None:
    raw = pipeline.raw_examples(opened(tmp_path, [2, 2, 2]), config(), 5)
    assert raw["blob"].tolist() == [input_sources.blob(i) for i in range(5)]


def test_a_streamed_source_is_not_cached(tmp_path: Path) -> None:
    address = input_sources.write_tfrecords(tmp_path, [3])
    for step in (pipeline.preflight, pipeline.open_source):
        with pytest.raises(ConfigError, match=r"data\.cache=True: tfrecord:.* no random access"):
            step(config(cache=True), address)


def test_a_sparse_feature_is_refused(tmp_path: Path) -> None:
    address = input_sources.write_tfrecords(tmp_path, [3])
    with pytest.raises(ConfigError, match=r"sparse tensor of 'zeros'; use tf\.io\.FixedLen"):
        pipeline.open_source(config(features="tests.input_sources:sparse"), address)


def test_a_missing_label_is_named(tmp_path: Path) -> None:
    address = input_sources.write_tfrecords(tmp_path, [3])
    with pytest.raises(DataError) as raised:
        pipeline.open_source(config(label="class"), address)
    assert str(raised.value) == (
        f"{address}: no feature 'class' (data.label); there are blob, id, label, weight"
    )
