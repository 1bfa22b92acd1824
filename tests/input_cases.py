"""User code and data files for the tests of the input pipeline.

paths = write_tfrecords(tmp_path, [10, 10, 3])       # ids 0..22, three files
ids = global_ids(source, config, workers=2, batch=8, start=0, end=5)  # [5, 8]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from array_record.python import array_record_module

from input_pipeline import pipeline
from input_pipeline.config import DataConfig

HERE = "tests.input_cases"


def ids_and_labels(count: int) -> dict[str, np.ndarray]:
    """Returns `id` 0..count-1 and `label` id % 3, both int64."""
    ids = np.arange(count, dtype=np.int64)
    return {"id": ids, "label": ids % 3}


def hundred() -> dict[str, np.ndarray]:
    """A dict of arrays."""
    return ids_and_labels(100)


def fifty_three() -> dict[str, np.ndarray]:
    """A number of examples that no batch size divides."""
    return ids_and_labels(53)


def five() -> dict[str, np.ndarray]:
    """So few that workers outnumber what is left of them."""
    return ids_and_labels(5)


def three() -> dict[str, np.ndarray]:
    """Fewer examples than workers."""
    return ids_and_labels(3)


def generated() -> Iterator[dict[str, Any]]:
    """A generator of dicts."""
    for i in range(100):
        yield {"id": np.int64(i), "label": np.int64(i % 3)}


def pair() -> tuple[np.ndarray, np.ndarray]:
    """An (x, y) tuple."""
    return np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0, 1, 2])


def weighted() -> dict[str, np.ndarray]:
    """Examples with a sample weight of their own: 1 + id."""
    columns = ids_and_labels(12)
    return columns | {"weight": 1 + columns["id"].astype(np.float32)}


def one_hot() -> dict[str, np.ndarray]:
    """Labels that are no class index."""
    return {"id": np.arange(12), "label": np.eye(3, dtype=np.float32)[np.arange(12) % 3]}


def ragged() -> dict[str, Any]:
    """Examples of different lengths."""
    return {"id": [[1], [1, 2]], "label": [0, 1]}


def ragged_generator() -> Iterator[dict[str, Any]]:
    """Examples of different lengths, one by one."""
    yield {"id": np.zeros(1), "label": 0}
    yield {"id": np.zeros(2), "label": 1}


def nothing() -> list[dict[str, Any]]:
    """No examples."""
    return []


def uneven() -> dict[str, np.ndarray]:
    """Columns of different lengths."""
    return {"id": np.arange(4), "label": np.arange(3)}


def features() -> dict[str, Any]:
    """The specification of what `write_tfrecords` and `write_array_records` write."""
    scalar = tf.io.FixedLenFeature([], tf.int64)
    return {"id": scalar, "label": scalar}


def noise(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """An augmentation whose result shows its seed: [3] random numbers and the id."""
    return tf.concat([[tf.cast(x, tf.float32)], tf.random.stateless_uniform([3], seed)], 0)


def to_float(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """A preprocessing."""
    return tf.cast(features["id"], tf.float32) / 2.0


def example(i: int) -> bytes:
    """Returns the serialised tf.train.Example of id `i`."""
    value = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
        for name, number in (("id", i), ("label", i % 3))
    }
    return tf.train.Example(features=tf.train.Features(feature=value)).SerializeToString()


def write_tfrecords(directory: Path, sizes: Sequence[int], compression: str = "") -> list[Path]:
    """Writes one file per size, ids counted through all files in the order of their names."""
    paths, first = [], 0
    for index, size in enumerate(sizes):
        paths.append(directory / f"part-{index:03d}.tfrecord")
        with tf.io.TFRecordWriter(str(paths[-1]), compression) as writer:
            for i in range(first, first + size):
                writer.write(example(i))
        first += size
    return paths


def write_array_records(directory: Path, sizes: Sequence[int]) -> list[Path]:
    """Writes ArrayRecord files as `write_tfrecords` writes TFRecord files."""
    paths, first = [], 0
    for index, size in enumerate(sizes):
        paths.append(directory / f"part-{index:03d}.array_record")
        writer = array_record_module.ArrayRecordWriter(str(paths[-1]), "group_size:1")
        for i in range(first, first + size):
            writer.write(example(i))
        writer.close()
        first += size
    return paths


def config_of(source: str, **fields: Any) -> DataConfig:
    """Returns the configuration that trains on `source`."""
    return DataConfig(train=source, features=f"{HERE}:features", **fields)


def opened(source: str, **fields: Any) -> tuple[Any, DataConfig]:
    """Returns the open source and its configuration."""
    config = config_of(source, **fields)
    return pipeline.open_source(config, source), config


def worker_batches(
    source: Any,
    config: DataConfig,
    *,
    workers: int,
    worker: int,
    batch: int,
    start: int,
    end: int,
    seed: int = 0,
    **more: Any,
) -> list[tuple[np.ndarray, ...]]:
    """Returns what one worker is fed in steps [start, end)."""
    dataset = pipeline.train_dataset(
        source,
        config,
        seed=seed,
        global_batch_size=batch,
        num_workers=workers,
        worker=worker,
        local_replicas=1,
        start_step=start,
        end_step=end,
        **more,
    )
    return list(dataset.as_numpy_iterator())


def global_ids(
    source: Any,
    config: DataConfig,
    *,
    workers: int,
    batch: int,
    start: int,
    end: int,
    seed: int = 0,
) -> np.ndarray:
    """Returns x of steps [start, end) of all workers, in the order of positions.

    Returns:
      [end - start, batch, ...].
    """
    parts = [
        np.array(
            [
                x
                for x, _ in worker_batches(
                    source,
                    config,
                    workers=workers,
                    worker=worker,
                    batch=batch,
                    start=start,
                    end=end,
                    seed=seed,
                )
            ]
        )
        for worker in range(workers)
    ]
    return np.concatenate(parts, axis=1)


def eval_ids(source: Any, config: DataConfig, *, workers: int, batch: int) -> list[list[list[int]]]:
    """Returns the ids of each batch of each worker."""
    return [
        [
            x.tolist()
            for x, _ in pipeline.eval_dataset(
                source, config, batch_size=batch, num_workers=workers, worker=worker
            ).as_numpy_iterator()
        ]
        for worker in range(workers)
    ]
