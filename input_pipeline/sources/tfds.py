"""`tfds:NAME/SPLIT`: a TensorFlow Datasets data set, read by index from ArrayRecord files.

The builders in `input_pipeline/datasets/` come first, then all that tfds knows. A data
set that is missing is prepared once, in a process of its own; see `prepare.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import tensorflow as tf

from input_pipeline.prepare import make_builder
from input_pipeline.sources.array_record import reader
from input_pipeline.sources.base import RandomAccess, spec_of
from trainer.errors import CONFIG, DataError


def count(source: str, address: str, data_dir: str) -> int:
    """Prepares the data set if it is missing, and returns the examples of the split.

    Raises:
      DataError: there is no such data set or split, or preparing it failed.
    """
    return _split(source, address, _prepared(source, address, data_dir)).num_examples


def open_tfds(source: str, address: str, data_dir: str) -> RandomAccess:
    """Opens a split of a prepared data set."""
    builder = _prepared(source, address, data_dir)
    split = _split(source, address, builder)
    parse = builder.info.features.deserialize_example
    return RandomAccess(
        name=source,
        num_examples=split.num_examples,
        read=reader(split.file_instructions),
        parse=parse,
        feature_spec=spec_of(parse, tf.TensorSpec([], tf.string)),
    )


def _prepared(source: str, address: str, data_dir: str) -> Any:
    name = address.rpartition("/")[0]
    if not name:
        raise DataError(f"{source}: expected tfds:NAME/SPLIT, such as tfds:digits/train")
    data_dir = os.path.expanduser(data_dir)
    builder = make_builder(source, name, data_dir)
    if not builder.is_prepared():
        # TensorFlow's runtime must stay untouched here until the strategy exists, and
        # preparing starts it. Of several workers one prepares, the others wait.
        command = [sys.executable, "-m", "input_pipeline.prepare", source, name, data_dir]
        env = {**os.environ, "TF_CONFIG": ""}
        child = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
        if child.returncode == CONFIG:
            raise DataError(child.stdout.strip())
        if child.returncode:
            raise DataError(
                f"{source}: preparing it under {data_dir} failed (exit code {child.returncode})"
            )
        builder = make_builder(source, name, data_dir)
    return builder


def _split(source: str, address: str, builder: Any) -> Any:
    name = address.rpartition("/")[2]
    try:
        split = builder.info.splits[name]
    except (KeyError, ValueError):
        there = ", ".join(builder.info.splits)
        raise DataError(f"{source}: no split {name!r}; there are {there}") from None
    if split.num_examples < 1:
        raise DataError(f"{source}: the split {name!r} has no examples; correct it")
    return split
