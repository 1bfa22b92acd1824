"""Files that do not hold what `data.features` says are named before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from array_record.python import array_record_module

from input_pipeline.schema import require_features
from tests import input_cases as cases
from trainer.errors import DataError

GOOD = {"id": [7], "label": [1]}


def serialised(values: dict[str, list[Any]]) -> bytes:
    feature = {}
    for name, numbers in values.items():
        if all(isinstance(n, bytes) for n in numbers):
            feature[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=numbers))
        elif any(isinstance(n, float) for n in numbers):
            feature[name] = tf.train.Feature(float_list=tf.train.FloatList(value=numbers))
        else:
            feature[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=numbers))
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def write(kind: str, directory: Path, records: list[bytes]) -> str:
    """Writes each record to a file of its own; returns the source string."""
    for index, record in enumerate(records):
        path = str(directory / f"part-{index}")
        if kind == "tfrecord":
            with tf.io.TFRecordWriter(path, "GZIP" if index % 2 else "") as writer:
                writer.write(record)
        else:
            writer = array_record_module.ArrayRecordWriter(path, "group_size:1")
            writer.write(record)
            writer.close()
    return f"{kind}:{directory}/part-*"


@pytest.mark.parametrize("kind", ["tfrecord", "array_record"])
@pytest.mark.parametrize(
    ("third", "reason"),
    [
        ({"id": [7]}, "no feature 'label', there are id;"),
        ({"id": [7], "label": [1.0]}, "feature 'label' is float32, but data.features says int64"),
        ({"id": [7], "label": [b"1"]}, "feature 'label' is string, but data.features says int64"),
        ({"id": [1, 2, 3], "label": [1]}, "feature 'id' has 3 values, but data.features says"),
    ],
)
def test_the_third_file_is_named(
    tmp_path: Path, kind: str, third: dict[str, list[Any]], reason: str
) -> None:
    records = [serialised(values) for values in (GOOD, GOOD, third, GOOD)]
    with pytest.raises(DataError) as caught:
        cases.opened(write(kind, tmp_path, records))
    message = str(caught.value)
    assert f"{tmp_path}/part-2: {reason}" in message
    assert "\n" not in message


@pytest.mark.parametrize("kind", ["tfrecord", "array_record"])
def test_other_records_are_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DataError, match=r"part-1 does not hold tf\.train\.Example"):
        cases.opened(write(kind, tmp_path, [serialised(GOOD), b"\xff\xff no message"]))


def test_a_corrupt_first_record_is_named(tmp_path: Path) -> None:
    paths = cases.write_tfrecords(tmp_path, [3] * 40)
    data = bytearray(paths[30].read_bytes())
    data[14] ^= 1
    paths[30].write_bytes(data)
    with pytest.raises(DataError, match=r"part-030.tfrecord is corrupt in its first record"):
        cases.opened(f"tfrecord:{tmp_path}/*")


def test_what_may_be_missing_or_vary() -> None:
    features = {
        "default": tf.io.FixedLenFeature([2], tf.float32, default_value=[0.0, 0.0]),
        "ragged": tf.io.RaggedFeature(tf.int64, value_key="stored"),
        "sequence": tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True),
    }
    allowed: list[dict[str, list[Any]]] = [
        {},
        {"stored": [1, 2, 3], "sequence": [b"a", b"b"]},
        {"default": [1.0, 2.0]},
    ]
    for values in allowed:
        record = serialised(values)
        require_features("source", ["path"], [record], features)
        tf.io.parse_single_example(record, features)
    with pytest.raises(DataError, match="'stored' is float32"):
        require_features("source", ["path"], [serialised({"stored": [1.0]})], features)
    with pytest.raises(DataError, match="'default' has 1 values"):
        require_features("source", ["path"], [serialised({"default": [1.0]})], features)
