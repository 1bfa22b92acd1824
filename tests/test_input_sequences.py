"""Sources that are read by index: the number of workers and restarts leave no trace."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import pipeline
from input_pipeline.order import Epochs
from tests import input_cases as cases
from trainer.errors import ConfigError, DataError

HERE = cases.HERE
HUNDRED = f"memory:{HERE}:hundred"


@pytest.fixture
def array_records(tmp_path: Path) -> str:
    cases.write_array_records(tmp_path, [40, 13])
    return f"array_record:{tmp_path}/part-*"


@pytest.mark.parametrize("kind", ["memory", "array_record", "cached"])
def test_workers_and_resumes_read_the_same_sequence(kind: str, array_records: str) -> None:
    address = f"memory:{HERE}:fifty_three" if kind == "memory" else array_records
    source, config = cases.opened(address, cache=kind == "cached")
    assert source.num_examples == 53
    one = cases.global_ids(source, config, workers=1, batch=12, start=0, end=14)
    for workers in (2, 3, 4):
        assert np.array_equal(
            one, cases.global_ids(source, config, workers=workers, batch=12, start=0, end=14)
        )
    # Stopped at any step, and gone on with another number of workers.
    for start, workers in [(1, 3), (4, 1), (5, 4), (9, 2)]:
        rest = cases.global_ids(source, config, workers=workers, batch=12, start=start, end=14)
        assert np.array_equal(one[start:], rest)
    for epoch in range(3):
        assert sorted(one.ravel()[epoch * 53 : (epoch + 1) * 53]) == list(range(53))
    assert not np.array_equal(one.ravel()[:53], one.ravel()[53:106])


def test_memory_and_files_have_one_order(array_records: str) -> None:
    arguments: Any = {"workers": 1, "batch": 12, "start": 0, "end": 9, "seed": 5}
    memory = cases.global_ids(*cases.opened(f"memory:{HERE}:fifty_three"), **arguments)
    files = cases.global_ids(*cases.opened(array_records), **arguments)
    assert np.array_equal(memory, files)


def test_the_seed_decides() -> None:
    source, config = cases.opened(HUNDRED)
    zero, again, one = (
        cases.global_ids(source, config, workers=1, batch=10, start=0, end=10, seed=seed)
        for seed in (0, 0, 1)
    )
    assert np.array_equal(zero, again)
    assert not np.array_equal(zero, one)


def test_epochs_end_where_the_loop_thinks_they_do() -> None:
    source, config = cases.opened(f"memory:{HERE}:fifty_three")
    epochs = Epochs(source.num_examples, 8)
    ids = cases.global_ids(source, config, workers=2, batch=8, start=0, end=epochs.end_step(4))
    flat = ids.ravel().tolist()
    for epoch in range(5):
        assert set(flat[epoch * 53 : (epoch + 1) * 53]) == set(range(53))
    assert len(flat) - 5 * 53 < 8


def test_unshuffled_is_file_order() -> None:
    source, config = cases.opened(HUNDRED, shuffle=False)
    ids = cases.global_ids(source, config, workers=2, batch=10, start=9, end=11)
    assert ids.ravel().tolist() == [*range(90, 100), *range(10)]


def test_augmented_values_do_not_depend_on_workers_or_resumes() -> None:
    source, config = cases.opened(HUNDRED, augment=f"{HERE}:noise")
    one = cases.global_ids(source, config, workers=1, batch=12, start=0, end=20)
    assert one.dtype == np.float32
    assert one.shape == (20, 12, 4)
    for workers in (2, 3, 4):
        other = cases.global_ids(source, config, workers=workers, batch=12, start=7, end=20)
        assert one[7:].tobytes() == other.tobytes()
    # An example gets other noise when it comes again.
    assert len(np.unique(one[..., 1])) == 20 * 12


def test_resuming_reads_nothing_that_was_used() -> None:
    source, config = cases.opened(HUNDRED, prefetch=0)
    seen: list[int] = []

    def record(indices: np.ndarray) -> np.ndarray:
        seen.extend(indices.tolist())
        return indices

    def read(indices: tf.Tensor) -> Any:
        noted = tf.numpy_function(record, [indices], tf.int64)
        return source.read(tf.ensure_shape(noted, indices.shape))

    spied = dataclasses.replace(source, read=read)
    rest = cases.global_ids(spied, config, workers=1, batch=10, start=8, end=10)
    assert sorted(seen) == sorted(rest.ravel().tolist())


def test_batches_have_a_fixed_shape_and_types() -> None:
    source, config = cases.opened(HUNDRED)
    dataset = pipeline.train_dataset(
        source, config, seed=0, global_batch_size=12, num_workers=2, worker=1,
        local_replicas=2, start_step=0, end_step=1,
    )  # fmt: skip
    assert dataset.element_spec == (tf.TensorSpec([6], tf.int64), tf.TensorSpec([6], tf.int64))
    with pytest.raises(ConfigError, match="4 replicas: use 8 or 12"):
        pipeline.train_dataset(
            source, config, seed=0, global_batch_size=10, num_workers=2, worker=1,
            local_replicas=2, start_step=0, end_step=1,
        )  # fmt: skip


def test_examples_without_label() -> None:
    source, config = cases.opened(HUNDRED, label="")
    (batch,) = cases.worker_batches(source, config, workers=1, worker=0, batch=4, start=0, end=1)
    (x,) = batch
    assert set(x) == {"id", "label"}


@pytest.mark.parametrize("own_weight", [False, True])
def test_class_weight_multiplies_the_sample_weight(own_weight: bool) -> None:
    address = f"memory:{HERE}:weighted"
    source, config = cases.opened(address, sample_weight="weight" if own_weight else "")
    class_weight = (1.0, 10.0, 100.0)
    train = cases.worker_batches(
        source, config, workers=1, worker=0, batch=4, start=0, end=3, class_weight=class_weight
    )
    x, y, weight = tf.nest.map_structure(lambda *p: np.concatenate(p), *train)
    ids = x if own_weight else x["id"]
    expected = np.array(class_weight)[y] * (1 + ids if own_weight else 1)
    assert weight.dtype == np.float32
    assert np.array_equal(weight, expected.astype(np.float32))
    assert sorted(ids) == list(range(12))


def test_class_weight_needs_class_indices() -> None:
    source, config = cases.opened(f"memory:{HERE}:one_hot")
    with pytest.raises(ConfigError, match="class_weight"):
        cases.worker_batches(
            source, config, workers=1, worker=0, batch=4, start=0, end=1, class_weight=(1.0, 2.0)
        )


@pytest.mark.parametrize("function", ["three", "five", "fifty_three"])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_evaluation_counts_every_example_once(function: str, workers: int) -> None:
    source, config = cases.opened(f"memory:{HERE}:{function}")
    for batch in (1, 2, 8):
        shares = cases.eval_ids(source, config, workers=workers, batch=batch)
        flat = [i for share in shares for ids in share for i in ids]
        assert flat == list(range(source.num_examples))
        for share in shares:
            assert all(len(ids) == batch for ids in share[:-1])
            assert all(0 < len(ids) <= batch for ids in share)


def test_evaluation_does_not_augment() -> None:
    source, config = cases.opened(HUNDRED, augment=f"{HERE}:noise", preprocess=f"{HERE}:to_float")
    dataset = pipeline.eval_dataset(source, config, batch_size=100, num_workers=1, worker=0)
    x, _ = next(dataset.as_numpy_iterator())
    assert np.array_equal(x, np.arange(100, dtype=np.float32) / 2)


def test_raw_features_leave_out_label_and_weight() -> None:
    source, config = cases.opened(f"memory:{HERE}:weighted", sample_weight="weight")
    spec = pipeline.raw_spec(source, config)
    assert {n: (s.shape.as_list(), s.dtype) for n, s in spec.items()} == {"id": ([], tf.int64)}
    raw = pipeline.raw_examples(source, config, 4)
    assert raw["id"].tolist() == [0, 1, 2, 3]
    assert pipeline.raw_examples(source, config, 99)["id"].shape == (12,)


def test_a_generator_is_covered_like_an_array() -> None:
    source, config = cases.opened(f"memory:{HERE}:generated")
    whole = cases.global_ids(source, config, workers=2, batch=10, start=0, end=10)
    assert sorted(whole.ravel()) == list(range(100))
    array, config = cases.opened(HUNDRED)
    assert np.array_equal(
        whole, cases.global_ids(array, config, workers=1, batch=10, start=0, end=10)
    )


def test_a_pair_is_x_and_label() -> None:
    source, config = cases.opened(f"memory:{HERE}:pair")
    dataset = pipeline.eval_dataset(source, config, batch_size=3, num_workers=1, worker=0)
    x, y = next(dataset.as_numpy_iterator())
    assert x.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert y.dtype == np.int64
    assert y.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("ragged", "differ in shape"),
        ("ragged_generator", "differ in shape"),
        ("nothing", "no examples"),
        ("uneven", "differ in length"),
    ],
)
def test_what_is_no_set_of_examples_is_refused(function: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        cases.opened(f"memory:{HERE}:{function}")
    assert "\n" not in str(caught.value)
    assert function in str(caught.value)


def test_a_feature_that_is_not_there_is_named() -> None:
    with pytest.raises(DataError, match=r"no feature 'klass' \(data.label\); there are id, label"):
        cases.opened(HUNDRED, label="klass")


def test_a_file_that_shrank_while_in_use_is_an_error(tmp_path: Path) -> None:
    cases.write_tfrecords(tmp_path, [10, 10])
    source, config = cases.opened(f"tfrecord:{tmp_path}/*.tfrecord", shuffle_buffer=16)
    cases.write_tfrecords(tmp_path, [10, 4])
    # Even where so many steps could be filled with records of later epochs.
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected to contain 10 elements"):
        cases.global_ids(source, config, workers=1, batch=5, start=0, end=4)
