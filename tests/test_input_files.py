"""Mistakes in files and addresses, found and named before any peer is waited for."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest

from input_pipeline import pipeline
from input_pipeline.config import DataConfig
from tests.input_sources import config, record, write_array_record, write_tfrecord
from trainer.errors import ConfigError, DataError, SteadfastError


def refused(source: str, kind: type[SteadfastError] = DataError) -> str:
    """Returns why `source` is refused, which is one line that begins with it."""
    with pytest.raises(kind) as raised:
        pipeline.preflight(config(), source)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(f"{source}: ")
    return message.removeprefix(f"{source}: ")


def starts_of_records(count: int) -> list[int]:
    """Returns where each record of a file of `count` begins, and where the last one ends."""
    starts = [0]
    for i in range(count):
        starts.append(starts[-1] + 12 + len(record(i)) + 4)
    return starts


@pytest.mark.parametrize("compressed", [False, True])
def test_whole_files_are_counted(tmp_path: Path, compressed: bool) -> None:
    write_tfrecord(tmp_path / "a", range(10), compressed=compressed)
    write_tfrecord(tmp_path / "b", range(3))
    assert pipeline.preflight(config(), f"tfrecord:{tmp_path}/*") == 13
    assert pipeline.preflight(config(), f"tfrecord:{tmp_path}") == 13
    assert pipeline.preflight(config(), f"tfrecord:{tmp_path}/a") == 10


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("left", [1, 8, 11, 12, 20, -1], ids="{} bytes left".format)
def test_a_cut_record_is_named_with_its_place(tmp_path: Path, compressed: bool, left: int) -> None:
    starts = starts_of_records(10)
    assert write_tfrecord(tmp_path / "part", range(10)).stat().st_size == starts[10]
    cut = (tmp_path / "part").read_bytes()[: starts[5] + left if left > 0 else starts[6] - 1]
    (tmp_path / "part").write_bytes(gzip.compress(cut) if compressed else cut)
    assert refused(f"tfrecord:{tmp_path}/part") == (
        f"{tmp_path}/part is cut or corrupt: record 5 at byte {starts[5]} is not whole; "
        "write the file again"
    )


@pytest.mark.parametrize("length", [0, 1, 2**40, 2**63, 2**64 - 1])
def test_a_corrupt_length_is_named_with_its_place(tmp_path: Path, length: int) -> None:
    start = starts_of_records(10)[4]
    data = bytearray(write_tfrecord(tmp_path / "part", range(10)).read_bytes())
    data[start : start + 8] = struct.pack("<Q", length)
    (tmp_path / "part").write_bytes(data)
    assert f"/part is cut or corrupt: record 4 at byte {start} " in refused(f"tfrecord:{tmp_path}")


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "part").write_text("id,label\n1,2\n3,4\n")
    assert "/part is cut or corrupt: record 0 at byte 0" in refused(f"tfrecord:{tmp_path}/part")
    assert f"{tmp_path}/part is not a whole ArrayRecord file: " in refused(
        f"array_record:{tmp_path}/part"
    )


def test_a_cut_or_corrupt_gzip_file_is_named(tmp_path: Path) -> None:
    whole = write_tfrecord(tmp_path / "part", range(10), compressed=True).read_bytes()
    flipped = bytes([*whole[:40], whole[40] ^ 0xFF, *whole[41:]])
    for data in (whole[:-20], whole[: len(whole) // 2], whole[:5], flipped):
        (tmp_path / "part").write_bytes(data)
        assert f"{tmp_path}/part is " in refused(f"tfrecord:{tmp_path}/part")


def test_gzip_files_may_be_joined(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tfrecord(tmp_path / name, range(10), compressed=True)
    (tmp_path / "c").write_bytes((tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes())
    source = pipeline.open_source(config(), f"tfrecord:{tmp_path}/c")
    raw = pipeline.raw_examples(source, config(), 100)
    assert raw["id"].tolist() == [*range(10), *range(10)]


@pytest.mark.parametrize("kind", ["tfrecord", "array_record"])
def test_an_empty_file_is_named(tmp_path: Path, kind: str) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).touch()
    assert refused(f"{kind}:{tmp_path}/b") == (
        f"{tmp_path}/b is empty (0 bytes); remove it or write it again"
    )
    assert refused(f"{kind}:{tmp_path}") == (
        f"{tmp_path}/a is empty (0 bytes); remove it or write it again (3 such files)"
    )


def test_a_file_without_records_is_named(tmp_path: Path) -> None:
    write_tfrecord(tmp_path / "zipped", [], compressed=True)
    write_array_record(tmp_path / "array", [])
    for kind, name in (("tfrecord", "zipped"), ("array_record", "array")):
        assert f"/{name} holds no records" in refused(f"{kind}:{tmp_path}/{name}")


@pytest.mark.parametrize("left", [0.5, 0.999])
def test_a_cut_array_record_file_is_named(tmp_path: Path, left: float) -> None:
    data = write_array_record(tmp_path / "part", range(10)).read_bytes()
    (tmp_path / "part").write_bytes(data[: int(left * len(data))])
    reason = refused(f"array_record:{tmp_path}/part")
    assert reason.startswith(f"{tmp_path}/part is not a whole ArrayRecord file: ")
    assert not reason.endswith(": ")


def test_no_match_is_named(tmp_path: Path) -> None:
    for pattern in (f"{tmp_path}/train-*", f"{tmp_path}/nowhere/train-*", f"{tmp_path}/train"):
        for kind in ("tfrecord", "array_record"):
            assert refused(f"{kind}:{pattern}") == (
                f"no data files match {pattern!r}; correct the path"
            )


def test_an_unknown_file_system_is_named() -> None:
    assert "'s3' not implemented" in refused("tfrecord:s3://bucket/train-*")


@pytest.mark.parametrize("name", ["fold[1]", "a[b-c]d"])
@pytest.mark.parametrize("end", ["", "/part-*", "/part-[0-4]", "/part-0"])
def test_brackets_in_a_directory_are_letters(tmp_path: Path, name: str, end: str) -> None:
    # As a pattern the name would mean these.
    for directory, ids in ((name, range(10)), ("fold1", range(3)), ("abd", range(3))):
        (tmp_path / directory).mkdir()
        write_tfrecord(tmp_path / directory / "part-0", ids)
    assert pipeline.preflight(config(), f"tfrecord:{tmp_path}/{name}{end}") == 10


def test_what_lies_beside_data_is_left_out(tmp_path: Path) -> None:
    write_tfrecord(tmp_path / "part-0", range(10))
    for name in ("_SUCCESS", ".part-0.crc", "part-0.crc", ".hidden", "part-1.tmp", "info.json"):
        (tmp_path / name).write_text("not data")
    (tmp_path / "part-2").mkdir()
    write_tfrecord(tmp_path / "part-2" / "deeper", range(5))
    for pattern in (tmp_path, f"{tmp_path}/*", f"{tmp_path}/part*"):
        assert pipeline.preflight(config(), f"tfrecord:{pattern}") == 10
    # Unless it is asked for.
    write_tfrecord(tmp_path / "_kept", range(3))
    assert pipeline.preflight(config(), f"tfrecord:{tmp_path}/_kept") == 3


def test_the_home_directory_has_a_short_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_tfrecord(tmp_path / "part-0", range(10))
    assert pipeline.preflight(config(), "tfrecord:~/part-*") == 10


def test_a_file_that_grew_is_counted_again(tmp_path: Path) -> None:
    for count in (10, 11):
        write_tfrecord(tmp_path / "part", range(count))
        assert pipeline.preflight(config(), f"tfrecord:{tmp_path}/part") == count


def test_records_need_a_specification(tmp_path: Path) -> None:
    write_tfrecord(tmp_path / "part", range(10))
    source = f"tfrecord:{tmp_path}/part"
    for step in (pipeline.preflight, pipeline.open_source):
        with pytest.raises(ConfigError, match=r"data\.features is not set"):
            step(DataConfig(), source)


@pytest.mark.parametrize("source", ["images:x", "tfds", "tfds:", ":x", "/data/train-*"])
def test_an_address_of_no_kind_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.validation='.*': expected KIND:ADDRESS"):
        DataConfig(validation=source)
