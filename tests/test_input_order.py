"""The order of examples: a permutation of all records in every epoch, without a world size."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from input_pipeline.order import (
    Epochs,
    Share,
    example_seeds,
    per_replica_batch,
    record_indices,
)
from trainer.errors import ConfigError, DataError


def epoch_order(n: int, epoch: int, seed: int = 0, shuffle: bool = True) -> list[int]:
    positions = tf.range(epoch * n, (epoch + 1) * n, dtype=tf.int64)
    return record_indices(positions, n, seed=seed, shuffle=shuffle).numpy().tolist()


@pytest.mark.parametrize("n", [*range(1, 34), 100, 127, 128, 129, 1437, 4097, 60_000])
def test_each_epoch_holds_every_record_once(n: int) -> None:
    for epoch in (0, 1, 7):
        assert sorted(epoch_order(n, epoch)) == list(range(n))


def test_order_changes_with_epoch_and_seed_only() -> None:
    orders = [tuple(epoch_order(100, epoch, seed)) for seed in (0, 1) for epoch in range(5)]
    assert len(set(orders)) == 10
    assert orders[0] == tuple(epoch_order(100, 0, 0))


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_small_ranges_are_not_stuck_in_few_patterns(n: int) -> None:
    orders = {tuple(epoch_order(n, epoch)) for epoch in range(200)}
    assert len(orders) >= {2: 2, 3: 6, 4: 20, 5: 50}[n]


def test_order_looks_random() -> None:
    order = np.array([epoch_order(1437, epoch) for epoch in range(20)])
    place = np.arange(1437)
    for one, following in itertools.pairwise(order):
        # About 4 standard deviations (1 / sqrt(n)) of independent orders.
        assert abs(np.corrcoef(one, place)[0, 1]) < 0.11
        assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.11
        assert abs(np.corrcoef(one, following)[0, 1]) < 0.11


def test_without_shuffle_the_order_is_that_of_the_files() -> None:
    assert epoch_order(7, 3, shuffle=False) == list(range(7))


def test_a_batch_over_two_epochs_takes_from_both() -> None:
    both = record_indices(tf.range(95, 105, dtype=tf.int64), 100, seed=0).numpy().tolist()
    assert both == epoch_order(100, 0)[95:] + epoch_order(100, 1)[:5]


@pytest.mark.parametrize(("n", "batch"), [(10, 10), (10, 3), (53, 8), (1442, 64), (64, 8)])
def test_an_epoch_ends_at_the_first_step_that_completes_it(n: int, batch: int) -> None:
    epochs = Epochs(n, batch)
    for epoch in range(5):
        end = epochs.end_step(epoch)
        assert end * batch >= (epoch + 1) * n > (end - 1) * batch
        for step in range(epochs.start_step(epoch), end):
            assert epochs.epoch_of_step(step) == epoch


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(DataError, match=r"10 examples, fewer than train.global_batch_size=16"):
        Epochs(10, 16)
    with pytest.raises(DataError, match="no examples"):
        Epochs(0, 16)


def test_a_batch_that_does_not_divide_names_those_that_do() -> None:
    assert per_replica_batch(12, 4) == 3
    with pytest.raises(ConfigError, match=r"train.global_batch_size=10 .*4 replicas: use 8 or 12"):
        per_replica_batch(10, 4)
    with pytest.raises(ConfigError, match=r"use 4$"):
        per_replica_batch(3, 4)


def test_shares_divide_every_prefix_of_the_positions() -> None:
    for batch, workers in [(4, 1), (4, 2), (12, 3), (12, 4)]:
        shares = [Share(batch, workers, worker) for worker in range(workers)]
        steps = [tf.constant(step, tf.int64) for step in range(3)]
        owner = [share.positions(step).numpy() for step in steps for share in shares]
        assert np.concatenate(owner).tolist() == list(range(3 * batch))
        for end in range(3 * batch + 1):
            counts = [
                sum(p % batch // (batch // workers) == worker for p in range(end))
                for worker in range(workers)
            ]
            assert [share.count_before(end) for share in shares] == counts


def test_no_two_positions_share_a_seed() -> None:
    positions = tf.concat(
        [tf.range(1000, dtype=tf.int64), 2**31 - 5 + tf.range(10, dtype=tf.int64)], 0
    )
    seeds = example_seeds(positions, seed=3)
    assert seeds.dtype == tf.int32
    assert len({tuple(s) for s in seeds.numpy().tolist()}) == 1010
    other = example_seeds(positions, seed=4).numpy()
    assert not (other == seeds.numpy()).all(axis=1).any()
