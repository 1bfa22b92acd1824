"""Data that is missing, empty or cut is named before anything starts."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from input_pipeline import pipeline
from tests import input_cases as cases
from tests.processes import tf_config
from trainer.errors import ConfigError, DataError


def count(address: str) -> int | None:
    return pipeline.preflight(cases.config_of(address), address)


def refusal(address: str) -> str:
    with pytest.raises(DataError) as caught:
        count(address)
    message = str(caught.value)
    assert "\n" not in message
    return message


def offset_of_record(path: Path, index: int) -> int:
    data, offset = path.read_bytes(), 0
    for _ in range(index):
        offset += 16 + struct.unpack_from("<Q", data, offset)[0]
    return offset


def test_files_are_counted(tmp_path: Path) -> None:
    cases.write_tfrecords(tmp_path, [10, 3])
    cases.write_array_records(tmp_path, [4, 5])
    assert count(f"tfrecord:{tmp_path}/*.tfrecord") == 13
    assert count(f"tfrecord:{tmp_path}/part-001.tfrecord") == 3
    assert count(f"array_record:{tmp_path}/*.array_record") == 9


@pytest.mark.parametrize("extra", [1, 8, 11, 12, 20, -1, -5])
def test_a_cut_file_is_named_with_the_place(tmp_path: Path, extra: int) -> None:
    """`extra` bytes of record 5 are left; fewer than none cut record 4 at its end."""
    _, path = cases.write_tfrecords(tmp_path, [2, 10])
    at = offset_of_record(path, 5)
    path.write_bytes(path.read_bytes()[: at + extra])
    message = refusal(f"tfrecord:{tmp_path}/*.tfrecord")
    record = 5 if extra > 0 else 4
    assert str(path) in message
    assert f"record {record} at byte {offset_of_record(path, record)}" in message


def test_a_flipped_byte_in_a_header_is_named(tmp_path: Path) -> None:
    (path,) = cases.write_tfrecords(tmp_path, [10])
    data, at = bytearray(path.read_bytes()), offset_of_record(path, 3)
    data[at + 1] ^= 1
    path.write_bytes(data)
    assert f"record 3 at byte {at}" in refusal(f"tfrecord:{path}")


@pytest.mark.parametrize("left", [5, 12, -1, -9])
def test_a_cut_gzip_file_is_named(tmp_path: Path, left: int) -> None:
    (path,) = cases.write_tfrecords(tmp_path, [200], "GZIP")
    path.write_bytes(path.read_bytes()[:left])
    assert str(path) in refusal(f"tfrecord:{path}")


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_cut_array_record_file_is_named(tmp_path: Path, share: float) -> None:
    _, path = cases.write_array_records(tmp_path, [3, 50])
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert str(path) in refusal(f"array_record:{tmp_path}/*.array_record")


@pytest.mark.parametrize("kind", ["tfrecord", "array_record"])
def test_an_empty_file_is_named(tmp_path: Path, kind: str) -> None:
    write = cases.write_tfrecords if kind == "tfrecord" else cases.write_array_records
    write(tmp_path, [10])
    (tmp_path / "part-007.x").write_bytes(b"")
    assert "part-007.x" in refusal(f"{kind}:{tmp_path}/part-*")


def test_no_records_are_named(tmp_path: Path) -> None:
    (packed,) = cases.write_tfrecords(tmp_path, [0], "GZIP")
    assert packed.stat().st_size > 0
    assert str(packed) in refusal(f"tfrecord:{packed}")
    (indexed,) = cases.write_array_records(tmp_path, [0])
    assert str(indexed) in refusal(f"array_record:{indexed}")


@pytest.mark.parametrize("kind", ["tfrecord", "array_record"])
def test_a_pattern_without_match_is_named(tmp_path: Path, kind: str) -> None:
    for pattern in (f"{tmp_path}/none-*", f"{tmp_path}/none", f"{tmp_path}/no/where/*"):
        assert pattern in refusal(f"{kind}:{pattern}")


def test_brackets_in_a_directory_are_letters(tmp_path: Path) -> None:
    directory = tmp_path / "set [1]" / "a"
    directory.mkdir(parents=True)
    cases.write_tfrecords(directory, [4, 4, 4])
    assert count(f"tfrecord:{directory}/*.tfrecord") == 12
    assert count(f"tfrecord:{directory}/part-00[02].tfrecord") == 8
    assert count(f"tfrecord:{directory}/part-001.tfrecord") == 4
    assert count(f"tfrecord:{directory}") == 12
    assert count(f"tfrecord:{tmp_path}/set [1]/*/part-*") == 12


def test_what_is_no_data_is_left_out(tmp_path: Path) -> None:
    cases.write_tfrecords(tmp_path, [4])
    for name in ("_SUCCESS", ".part-000.tfrecord.crc", "part-000.crc", ".hidden"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "part-001.tfrecord.incomplete.0A1B").write_bytes(b"12345")
    (tmp_path / "part-directory").mkdir()
    assert count(f"tfrecord:{tmp_path}/*") == 4
    assert count(f"tfrecord:{tmp_path}") == 4


def test_features_must_be_configured(tmp_path: Path) -> None:
    cases.write_tfrecords(tmp_path, [4])
    config = cases.config_of(f"tfrecord:{tmp_path}")
    config.features = ""
    with pytest.raises(ConfigError, match=r"data\.features is not set"):
        pipeline.preflight(config, config.train)


def test_a_file_that_is_no_tfrecord(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("This is a text, and no record at all.\n" * 9)
    assert re.search(r"text.txt .*record 0 at byte 0", refusal(f"tfrecord:{path}"))


CONTEXT_PROGRAM = """
import sys
from input_pipeline import pipeline
from tests.input_cases import HERE
from input_pipeline.config import DataConfig
import tensorflow as tf

control, data_dir, *sources = sys.argv[1:]
configs = [DataConfig(train=s, data_dir=data_dir, features=HERE + ":features") for s in sources]
print([pipeline.preflight(c, c.train) for c in configs])
if control == "control":
    tf.constant(1)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
assert strategy.num_replicas_in_sync == 1
for config in configs:
    source = pipeline.open_source(config, config.train)
    dataset = pipeline.eval_dataset(source, config, batch_size=3, num_workers=1, worker=0)
    print([len(batch[1]) for batch in dataset.take(1)])
"""


@pytest.mark.parametrize("control", ["", "control"])
def test_a_strategy_can_be_made_after_preflight(
    tmp_path: Path, python: Callable, free_port: Callable[[], int], control: str
) -> None:
    cases.write_tfrecords(tmp_path, [5])
    cases.write_array_records(tmp_path, [6])
    sources = [f"tfrecord:{tmp_path}/*.tfrecord", f"array_record:{tmp_path}/*.array_record"]
    if not control:  # prepared on the way
        sources += ["tfds:digits/test", f"memory:{cases.HERE}:hundred"]
    done = python(
        "-c", CONTEXT_PROGRAM, control, str(tmp_path / "data"), *sources,
        env={"TF_CONFIG": tf_config([free_port()], 0)},
    )  # fmt: skip
    if control:
        # What the other run shows to be absent.
        assert "must be configured at program startup" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["[5, 6, 355, None]", *["[3]"] * 4]
