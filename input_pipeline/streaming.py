"""Raw records of files that are read from front to back, divided exactly over workers.

    dataset = records(source, share, seed=0, shuffle=True, start_step=100, end_step=200)

Every epoch has its own order of files, the same on all workers. Each worker takes one
contiguous range of the records of that order, as many as it has positions in the epoch. So
the ranges cover every record once, whatever the numbers of files and workers are, and a
worker opens only the files its range touches. Inside the range files are interleaved and
records pass through a seeded shuffle buffer. On resume raw records are skipped, not parsed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from input_pipeline.order import Share
from input_pipeline.sources.base import RecordFile, Streamed

_OPEN_FILES = 8

Part = tuple[RecordFile, int, int]
"""A file, how many of its records to skip, and how many to take."""


def records(
    source: Streamed,
    share: Share,
    *,
    seed: int,
    shuffle: bool,
    shuffle_buffer: int,
    start_step: int,
    end_step: int,
) -> tf.data.Dataset:
    """Returns elements (raw record, position int64 []) of steps [start_step, end_step)."""
    n = source.num_examples
    first_epoch = share.first_position(start_step) // n
    last_epoch = (share.first_position(end_step - 1) + share.size - 1) // n
    used = start_step * share.size - share.count_before(first_epoch * n)

    def plan(epoch: np.ndarray) -> tuple[np.ndarray, ...]:
        return plan_epoch(source, share, int(epoch), seed=seed, shuffle=shuffle)

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        # Planned when the epoch begins, so a long run does not begin with a long graph.
        parts = tf.numpy_function(plan, [epoch], [tf.string, tf.string, tf.int64, tf.int64])
        for part in parts:
            part.set_shape([None])
        dataset = tf.data.Dataset.from_tensor_slices(tuple(parts))
        if shuffle:
            dataset = dataset.interleave(
                _read_part,
                cycle_length=_OPEN_FILES,
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=True,
            )
            # `shuffle` mixes in the seed of the graph, which is the process' global seed
            # unless set here; that one is anybody's to change.
            tf.random.set_seed(seed + 1)
            dataset = dataset.shuffle(shuffle_buffer, seed=epoch, reshuffle_each_iteration=False)
        else:
            dataset = dataset.flat_map(_read_part)
        return dataset.skip(tf.where(epoch == first_epoch, tf.constant(used, tf.int64), 0))

    def position(index: tf.Tensor, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        step, row = index // share.size, index % share.size
        return record, step * share.global_batch_size + share.worker * share.size + row

    epochs = tf.data.Dataset.range(first_epoch, last_epoch + 1)
    dataset = epochs.flat_map(one_epoch).take((end_step - start_step) * share.size)
    return dataset.enumerate(start_step * share.size).map(position)


def range_of(source: Streamed, first: int, end: int) -> tf.data.Dataset:
    """Returns raw records [first, end) in file order."""
    parts = _as_arrays(_overlap(source.files, first, end))
    return tf.data.Dataset.from_tensor_slices(parts).flat_map(_read_part)


def plan_epoch(
    source: Streamed, share: Share, epoch: int, *, seed: int, shuffle: bool
) -> tuple[np.ndarray, ...]:
    """Returns the parts of files that a worker reads in an epoch.

    Returns:
      Path, compression, records to skip and records to take: four arrays, one row a part.
    """
    n = source.num_examples
    sizes = []
    for worker in range(share.num_workers):
        other = Share(share.global_batch_size, share.num_workers, worker)
        sizes.append(other.count_before((epoch + 1) * n) - other.count_before(epoch * n))
    first = sum(sizes[: share.worker])
    files = list(source.files)
    if shuffle:
        order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(len(files))
        files = [files[i] for i in order]
    return _as_arrays(_overlap(files, first, first + sizes[share.worker]))


def _overlap(files: Sequence[RecordFile], first: int, end: int) -> list[Part]:
    """Returns the parts of `files` that hold records [first, end) of all of them."""
    parts: list[Part] = []
    start = 0
    for file in files:
        low, high = max(first, start), min(end, start + file.num_records)
        if low < high:
            parts.append((file, low - start, high - low))
        start += file.num_records
    return parts


def _as_arrays(parts: list[Part]) -> tuple[np.ndarray, ...]:
    return (
        np.array([file.path.encode() for file, _, _ in parts], object),
        np.array([file.compression.encode() for file, _, _ in parts], object),
        np.array([skip for _, skip, _ in parts], np.int64),
        np.array([take for _, _, take in parts], np.int64),
    )


def _read_part(
    path: tf.Tensor, compression: tf.Tensor, skip: tf.Tensor, take: tf.Tensor
) -> tf.data.Dataset:
    records = tf.data.TFRecordDataset(path, compression_type=compression).skip(skip).take(take)
    # A file that became shorter after it was counted must not pull the next epoch forward.
    return records.apply(tf.data.experimental.assert_cardinality(take))
