"""Streamed files: every record once an epoch, for any numbers of files and workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import pipeline
from tests import input_cases as cases


def stream(directory: Path, **fields: Any) -> tuple[Any, Any]:
    return cases.opened(f"tfrecord:{directory}/*.tfrecord", shuffle_buffer=16, **fields)


@pytest.mark.parametrize(
    ("sizes", "workers", "batch"),
    [
        ([20], 2, 4),  # one file, two workers
        ([10, 10], 3, 6),  # fewer files than workers
        ([5] * 8, 2, 8),
        ([5] * 8, 3, 6),
        ([1, 30, 2, 7], 3, 12),  # uneven
        ([3, 3, 3], 4, 8),  # nine records, batches over epochs
        ([12], 4, 12),  # one step an epoch
    ],
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_record_once_an_epoch(
    tmp_path: Path, sizes: list[int], workers: int, batch: int, shuffle: bool
) -> None:
    cases.write_tfrecords(tmp_path, sizes)
    source, config = stream(tmp_path, shuffle=shuffle)
    n = sum(sizes)
    assert source.num_examples == n
    steps = -(-3 * n // batch)
    ids = cases.global_ids(source, config, workers=workers, batch=batch, start=0, end=steps)
    assert ids.shape == (steps, batch)
    epochs = [ids.ravel()[e * n : (e + 1) * n].tolist() for e in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(n))
    if shuffle and n >= 20:  # fewer have too few orders to differ for sure
        assert len({tuple(e) for e in epochs}) == 3


@pytest.mark.parametrize("shuffle", [True, False])
def test_resumes_continue_the_same_sequence(tmp_path: Path, shuffle: bool) -> None:
    cases.write_tfrecords(tmp_path, [9, 14, 6])
    source, config = stream(tmp_path, shuffle=shuffle)
    whole = cases.global_ids(source, config, workers=2, batch=8, start=0, end=12)
    for start in (1, 3, 4, 7, 11):
        # Another global seed of the process, as another order of start-up would leave it.
        tf.random.set_seed(start)
        rest = cases.global_ids(source, config, workers=2, batch=8, start=start, end=12)
        assert np.array_equal(whole[start:], rest)


def test_unshuffled_on_one_worker_is_file_order(tmp_path: Path) -> None:
    cases.write_tfrecords(tmp_path, [7, 5])
    source, config = stream(tmp_path, shuffle=False)
    ids = cases.global_ids(source, config, workers=1, batch=6, start=0, end=4)
    assert ids.ravel().tolist() == [*range(12), *range(12)]


def test_the_seed_decides(tmp_path: Path) -> None:
    cases.write_tfrecords(tmp_path, [10, 10, 10])
    source, config = stream(tmp_path)
    zero, again, one = (
        cases.global_ids(source, config, workers=1, batch=10, start=0, end=3, seed=seed)
        for seed in (0, 0, 1)
    )
    assert np.array_equal(zero, again)
    assert not np.array_equal(zero, one)


def test_each_worker_opens_only_its_own_files(tmp_path: Path) -> None:
    paths = cases.write_tfrecords(tmp_path, [10] * 8)
    source, config = stream(tmp_path)
    used: list[set[int]] = []
    for worker in (0, 1):
        arguments: Any = {"workers": 2, "worker": worker, "batch": 8, "start": 0, "end": 10}
        before = cases.worker_batches(source, config, **arguments)
        files = {int(i) // 10 for x, _ in before for i in x}
        others = [path for index, path in enumerate(paths) if index not in files]
        hidden = [path.rename(path.with_suffix(".hidden")) for path in others]
        after = cases.worker_batches(source, config, **arguments)
        for path in hidden:
            path.rename(path.with_suffix(".tfrecord"))
        assert np.array_equal([x for x, _ in before], [x for x, _ in after])
        used.append(files)
    assert [len(files) for files in used] == [4, 4]
    assert used[0] | used[1] == set(range(8))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_gzip_files_stand_beside_plain_ones(tmp_path: Path, workers: int) -> None:
    cases.write_tfrecords(tmp_path, [8, 8], "GZIP")
    with tf.io.TFRecordWriter(str(tmp_path / "zzz.tfrecord")) as writer:
        for i in range(16, 20):
            writer.write(cases.example(i))
    source, config = stream(tmp_path)
    ids = cases.global_ids(source, config, workers=workers, batch=6, start=0, end=10)
    for epoch in range(3):
        assert sorted(ids.ravel()[epoch * 20 : (epoch + 1) * 20]) == list(range(20))


@pytest.mark.parametrize("sizes", [[3], [1, 1, 1], [5, 8], [2, 30, 1]])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_evaluation_counts_every_example_once(
    tmp_path: Path, sizes: list[int], workers: int
) -> None:
    cases.write_tfrecords(tmp_path, sizes)
    source, config = stream(tmp_path)
    for batch in (2, 5):
        shares = cases.eval_ids(source, config, workers=workers, batch=batch)
        flat = [i for share in shares for ids in share for i in ids]
        assert flat == list(range(sum(sizes)))


def test_augmentation_is_given_back_on_resume(tmp_path: Path) -> None:
    cases.write_tfrecords(tmp_path, [9, 9])
    source, config = stream(tmp_path, augment=f"{cases.HERE}:noise")
    whole = cases.global_ids(source, config, workers=2, batch=4, start=0, end=12)
    rest = cases.global_ids(source, config, workers=2, batch=4, start=6, end=12)
    assert whole[6:].tobytes() == rest.tobytes()
    assert len(np.unique(whole[..., 1])) == 12 * 4


def test_raw_examples_are_the_first(tmp_path: Path) -> None:
    cases.write_tfrecords(tmp_path, [2, 9])
    source, config = stream(tmp_path)
    assert pipeline.raw_examples(source, config, 5)["id"].tolist() == [0, 1, 2, 3, 4]


def test_a_file_that_shrank_while_in_use_is_an_error(tmp_path: Path) -> None:
    cases.write_tfrecords(tmp_path, [10, 10])
    source, config = stream(tmp_path)
    cases.write_tfrecords(tmp_path, [10, 4])
    # Even where so many steps could be filled with records of later epochs.
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected to contain 10 elements"):
        cases.global_ids(source, config, workers=1, batch=5, start=0, end=4)
