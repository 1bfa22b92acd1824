"""From a source to batches on one worker.

    num_examples = preflight(config, config.train)       # before the strategy exists
    source = open_source(config, config.train)           # after it
    dataset = train_dataset(source, config, seed=0, ...) # (x, y) batches from any step on

    A position -> B record index -> C raw records -> D parsed features
      -> E model input (preprocess, augment) -> F batch -> prefetch

A to C differ by kind of source and stand in `random_access.py` and `streaming.py`; D to F
are here. Nothing is sharded by tf.data: each worker computes what is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from input_pipeline import random_access, streaming
from input_pipeline.config import DataConfig
from input_pipeline.model_input import model_input
from input_pipeline.order import Share, example_seeds, per_replica_batch
from input_pipeline.sources import array_record, memory, tfds, tfrecord
from input_pipeline.sources.base import RandomAccess, Source, stacked
from trainer.errors import ConfigError, DataError
from trainer.user_code import load

__all__ = [
    "eval_dataset",
    "open_source",
    "per_replica_batch",
    "preflight",
    "raw_examples",
    "raw_spec",
    "train_dataset",
]


def preflight(config: DataConfig, source: str) -> int | None:
    """Checks that the data is there and whole, and counts it, before any peer is waited for.

    Does not touch TensorFlow's runtime, which must stay unused until the strategy exists.

    Returns:
      The number of examples; None for `memory` sources, which are user code.

    Raises:
      DataError: files are missing, empty or cut; names them.
      ConfigError: something the source needs is not configured.
    """
    kind, address = _kind_and_address(config, source)
    if kind == "tfds":
        return tfds.count(source, address, config.data_dir)
    if kind == "array_record":
        return array_record.count(source, address)
    if kind == "tfrecord":
        return tfrecord.count(source, address)
    return None


def open_source(config: DataConfig, source: str) -> Source:
    """Opens a source, importing user code where it is made of it.

    Raises:
      DataError, ConfigError: as `preflight`, or a feature that the configuration names
        is not there.
    """
    kind, address = _kind_and_address(config, source)
    opened: Source
    if kind == "memory":
        opened = memory.open_memory(source, address, "data.train or data.validation")
    elif kind == "tfds":
        opened = tfds.open_tfds(source, address, config.data_dir)
    else:
        features = load(config.features, field="data.features")()
        opener = (
            array_record.open_array_record if kind == "array_record" else tfrecord.open_tfrecord
        )
        opened = opener(source, address, features)
    for field in ("label", "sample_weight"):
        name = getattr(config, field)
        if name and name not in opened.feature_spec:
            there = ", ".join(opened.feature_spec)
            raise DataError(f"{source}: no feature {name!r} (data.{field}); there are {there}")
    if config.cache and isinstance(opened, RandomAccess):
        opened = random_access.cached(opened)
    return opened


def _kind_and_address(config: DataConfig, source: str) -> tuple[str, str]:
    kind, _, address = source.partition(":")
    if kind in ("array_record", "tfrecord") and not config.features:
        raise ConfigError(
            f"{source}: data.features is not set: name a MODULE:FUNCTION that returns the "
            "feature specification of its records"
        )
    if kind == "tfrecord" and config.cache:
        raise ConfigError(f"data.cache=True: {source} has no random access; convert or unset it")
    return kind, address


def train_dataset(
    source: Source,
    config: DataConfig,
    *,
    seed: int,
    global_batch_size: int,
    num_workers: int,
    worker: int,
    local_replicas: int,
    start_step: int,
    end_step: int,
    class_weight: Sequence[float] = (),
) -> tf.data.Dataset:
    """Returns this worker's batches of steps [start_step, end_step).

    Nothing that earlier steps used is decoded, and with random access it is not read.

    Returns:
      Elements (x,), (x, y) or (x, y, sample_weight) whose leading dimension is
      global_batch_size // num_workers.

    Raises:
      ConfigError: the global batch does not divide over all replicas.
    """
    per_replica_batch(global_batch_size, num_workers * local_replicas)
    share = Share(global_batch_size, num_workers, worker)
    make = random_access.records if isinstance(source, RandomAccess) else streaming.records
    records = make(
        source,  # type: ignore[arg-type]
        share,
        seed=seed,
        shuffle=config.shuffle,
        shuffle_buffer=config.shuffle_buffer,
        start_step=start_step,
        end_step=end_step,
    )
    to_example = _to_example(source, config, class_weight)
    augment = load(config.augment, field="data.augment") if config.augment else None

    def prepare(raw: Any, position: tf.Tensor) -> tuple[Any, ...]:
        x, *rest = to_example(raw)
        if augment:
            x = augment(x, example_seeds(position, seed))
        return (x, *rest)

    dataset = records.map(prepare, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return dataset.batch(share.size, drop_remainder=True).prefetch(config.prefetch)


def eval_dataset(
    source: Source,
    config: DataConfig,
    *,
    batch_size: int,
    num_workers: int,
    worker: int,
) -> tf.data.Dataset:
    """Returns this worker's contiguous share of all examples, each once, in file order.

    Batches hold `batch_size` examples, the last one what is left; a share may be empty.
    There is no class weight, as in Keras' `fit`: it steers training and is no measure.
    """
    n = source.num_examples
    first, end = n * worker // num_workers, n * (worker + 1) // num_workers
    make = random_access.range_of if isinstance(source, RandomAccess) else streaming.range_of
    dataset = make(source, first, end).map(  # type: ignore[arg-type]
        _to_example(source, config),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    return dataset.batch(batch_size).prefetch(config.prefetch)


def raw_spec(source: Source, config: DataConfig) -> dict[str, tf.TensorSpec]:
    """Returns the features of one example as a caller of the served model sends them."""
    left_out = {config.label, config.sample_weight}
    return {name: spec for name, spec in source.feature_spec.items() if name not in left_out}


def raw_examples(source: Source, config: DataConfig, count: int) -> dict[str, np.ndarray]:
    """Returns the features of the first examples, stacked: {name: [count, ...]}.

    Examples that differ in shape from the first one are left out.
    """
    names = raw_spec(source, config)
    make = random_access.range_of if isinstance(source, RandomAccess) else streaming.range_of
    records = make(source, 0, min(count, source.num_examples))  # type: ignore[arg-type]
    rows = list(records.map(source.parse).as_numpy_iterator())
    shapes = [{name: np.shape(row[name]) for name in names} for row in rows]
    rows = [row for row, shape in zip(rows, shapes, strict=True) if shape == shapes[0]]
    return {name: stacked([row[name] for row in rows]) for name in names}


def _to_example(
    source: Source, config: DataConfig, class_weight: Sequence[float] = ()
) -> Callable[[Any], tuple[Any, ...]]:
    """Returns graph code: one raw record -> (x,), (x, y) or (x, y, sample_weight)."""
    preprocess = load(config.preprocess, field="data.preprocess") if config.preprocess else None
    if class_weight:
        _require_classes(source, config)

    def to_example(raw: Any) -> tuple[Any, ...]:
        features = dict(source.parse(raw))
        y = features.pop(config.label) if config.label else None
        weight = features.pop(config.sample_weight) if config.sample_weight else None
        x = preprocess(features) if preprocess else model_input(features)
        if y is None:
            return (x,)
        if class_weight:
            weights = tf.constant(class_weight, tf.float32)
            of_class = tf.gather(weights, tf.cast(tf.reshape(y, []), tf.int32))
            weight = of_class if weight is None else of_class * tf.cast(weight, tf.float32)
        return (x, y) if weight is None else (x, y, weight)

    return to_example


def _require_classes(source: Source, config: DataConfig) -> None:
    """Checks that `train.class_weight` has the index of a class to look up."""
    if not config.label:
        raise ConfigError("train.class_weight is set, but data.label is not: there are no classes")
    spec = source.feature_spec[config.label]
    if spec.dtype == tf.string or spec.shape.num_elements() != 1:
        raise ConfigError(
            f"train.class_weight needs one class index an example, but {config.label!r} of "
            f"{source.name} is {spec.dtype.name} of shape {spec.shape}"
        )
