"""Examples with an identity, as every kind of source, and what workers read of them.

Example i has id i, label i % 3, weight 1 + i / 8 and a blob that ends in a zero byte.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from input_pipeline import pipeline
from input_pipeline.config import DataConfig
from input_pipeline.sources.base import Source
from tests import input_cases

N = 25


def blob(i: int) -> bytes:
    return b"blob %d\0" % i


def features() -> dict[str, Any]:
    return {
        "id": tf.io.FixedLenFeature([], tf.int64),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "weight": tf.io.FixedLenFeature([], tf.float32),
        "blob": tf.io.FixedLenFeature([], tf.string),
    }


def with_length() -> dict[str, Any]:
    """Returns the features with one more, whose length varies: zeros, i % 3 of them."""
    return {**features(), "zeros": tf.io.RaggedFeature(tf.float32)}


def sparse() -> dict[str, Any]:
    return {"zeros": tf.io.VarLenFeature(tf.float32)}


def record(i: int) -> bytes:
    """Returns example i as a serialised tf.train.Example."""
    ints, floats, strings = tf.train.Int64List, tf.train.FloatList, tf.train.BytesList
    feature = {
        "id": tf.train.Feature(int64_list=ints(value=[i])),
        "label": tf.train.Feature(int64_list=ints(value=[i % 3])),
        "weight": tf.train.Feature(float_list=floats(value=[1 + i / 8])),
        "blob": tf.train.Feature(bytes_list=strings(value=[blob(i)])),
        "zeros": tf.train.Feature(float_list=floats(value=[0.0] * (i % 3))),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def write_tfrecord(path: Path, ids: Sequence[int], *, compressed: bool = False) -> Path:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for i in ids:
            writer.write(record(i))
    if compressed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    return path


def write_array_record(path: Path, ids: Sequence[int]) -> Path:
    from array_record.python import array_record_module

    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for i in ids:
        writer.write(record(i))
    writer.close()
    return path


def write_tfrecords(directory: Path, sizes: Sequence[int]) -> str:
    """Writes a file of each size, every third compressed; returns the source string."""
    first = 0
    for index, size in enumerate(sizes):
        ids = range(first, first + size)
        write_tfrecord(directory / f"part-{index}", ids, compressed=index % 3 == 2)
        first += size
    return f"tfrecord:{directory}/part-*"


def write_array_records(directory: Path, sizes: Sequence[int]) -> str:
    first = 0
    for index, size in enumerate(sizes):
        write_array_record(directory / f"part-{index}", range(first, first + size))
        first += size
    return f"array_record:{directory}/part-*"


def write_source(kind: str, directory: Path, sizes: Sequence[int] = (4, 18, 3)) -> str:
    """Returns the source string of `sum(sizes)` examples, which are N for `memory`."""
    if kind == "memory":
        return "memory:tests.input_sources:columns"
    return (write_tfrecords if kind == "tfrecord" else write_array_records)(directory, sizes)


def columns(n: int = N) -> dict[str, Any]:
    return {
        "id": np.arange(n),
        "label": np.arange(n) % 3,
        "weight": np.array([1 + i / 8 for i in range(n)], np.float32),
        "blob": [blob(i) for i in range(n)],
    }


def three() -> dict[str, Any]:
    return columns(3)


def generator() -> Iterator[dict[str, Any]]:
    for i in range(N):
        yield {"id": i, "label": i % 3, "weight": np.float32(1 + i / 8), "blob": blob(i)}


def id_of(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """A `data.preprocess` that keeps only the identity."""
    return features["id"]


def noisy(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """A `data.augment`: the id and a random fraction."""
    return tf.cast(x, tf.float32) + tf.random.stateless_uniform([], seed)


def config(**changes: Any) -> DataConfig:
    defaults: dict[str, Any] = {
        "features": "tests.input_sources:features",
        "preprocess": "tests.input_sources:id_of",
        # Small, so that what comes later in the epoch cannot come first.
        "shuffle_buffer": 5,
    }
    return DataConfig(**(defaults | changes))


def read(
    source: Source,
    config: DataConfig,
    steps: tuple[int, int],
    *,
    workers: int = 1,
    batch: int = 12,
    seed: int = 0,
    **options: Any,
) -> tuple[np.ndarray, ...]:
    """Returns what all workers read in `steps`, in the order of positions.

    Checks that every worker has one batch of its share for each step.

    Returns:
      Arrays x, and y and sample weights where there are any: [steps * batch, ...] each.
    """
    shares = []
    for worker in range(workers):
        batches = input_cases.worker_batches(
            source,
            config,
            workers=workers,
            worker=worker,
            batch=batch,
            start=steps[0],
            end=steps[1],
            seed=seed,
            **options,
        )
        assert len(batches) == steps[1] - steps[0]
        assert {len(part) for parts in batches for part in parts} <= {batch // workers}
        shares.append(batches)
    by_step = [part for step in zip(*shares, strict=True) for part in step]
    return tuple(np.concatenate(parts) for parts in zip(*by_step, strict=True))


def read_ids(
    source: Source, config: DataConfig, steps: tuple[int, int], **options: Any
) -> list[int]:
    return read(source, config, steps, **options)[0].tolist()


def evaluate(
    source: Source, config: DataConfig, *, workers: int, batch: int = 4
) -> list[tuple[np.ndarray, ...]]:
    """Returns the batches of all workers, one worker after the other."""
    return [
        b
        for worker in range(workers)
        for b in pipeline.eval_dataset(
            source, config, batch_size=batch, num_workers=workers, worker=worker
        ).as_numpy_iterator()
    ]
