"""`export.verify` accepts a whole version and refuses any other, naming the file."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from export import files, golden, integrity, saved_model
from export.config import ExportConfig
from export.verify import verify
from tests import export_cases
from trainer.errors import DataError

DATA = "variables/variables.data-00000-of-00001"
FLIPS = 60


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole version of the CNN, shared: copy it before changing it."""
    case = export_cases.cnn()
    base = tmp_path_factory.mktemp("model")
    result = saved_model.export(
        case.model, ExportConfig(dir=str(base)), metrics={}, **case.arguments()
    )
    return Path(result.path)


@pytest.fixture
def version(exported: Path, tmp_path: Path) -> Path:
    """A copy of the version, to be damaged."""
    return Path(shutil.copytree(exported, tmp_path / "7"))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def test_whole_version(exported: Path) -> None:
    report = verify(f"{exported}/")
    assert report.path == str(exported)
    assert report.num_requests == export_cases.NUM_EXAMPLES
    assert report.batch_sizes == (1, 5, 12)
    assert 0 <= report.max_difference <= report.tolerance == 1e-5
    assert report.signatures["serving_default"] == {
        "inputs": {"image": "uint8[None, 12, 12, 1]"},
        "outputs": {"output": "float32[None, 10]"},
    }
    assert report.seconds_to_load < 5


def test_every_flipped_byte_is_found(version: Path) -> None:
    names = [name for name in files.walk(str(version)) if name != integrity.MANIFEST]
    assert {DATA, "saved_model.pb", golden.ARRAYS, golden.INDEX} <= set(names)
    chance = random.Random(0)
    for i in range(FLIPS):
        name = names[i % len(names)]
        path = version / name
        offset = chance.randrange(path.stat().st_size)
        flip(path, offset)
        with pytest.raises(DataError, match=r"the file was changed or cut") as found:
            verify(str(version))
        assert str(found.value).startswith(f"{path}: ")
        flip(path, offset)
    integrity.check(str(version))


@pytest.mark.parametrize("name", [DATA, "saved_model.pb", golden.ARRAYS, integrity.MANIFEST])
def test_cut_and_missing_files_are_named(version: Path, name: str) -> None:
    path = version / name
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(DataError) as cut:
        verify(str(version))
    assert str(path) in str(cut.value)
    path.unlink()
    with pytest.raises(DataError, match="missing") as missing:
        verify(str(version))
    assert str(path) in str(missing.value)


def test_added_file_is_named(version: Path) -> None:
    (version / "assets.extra" / "tf_serving_warmup_requests").write_text("x")
    with pytest.raises(DataError, match=r"tf_serving_warmup_requests: not in the manifest"):
        verify(str(version))


def test_other_answers_are_found_even_with_a_manifest_to_match(version: Path) -> None:
    stored = golden.read(str(version))
    answers = {"output": stored.answers["output"].copy()}
    answers["output"][3, 2] += 2e-5
    golden.write(str(version), golden.Golden(stored.requests, answers, stored.tolerance))
    integrity.seal(str(version))
    with pytest.raises(DataError, match=r"output 'output' at batch size 1: golden request 3 is"):
        verify(str(version))


def test_version_that_does_not_load_is_refused(version: Path) -> None:
    (version / "saved_model.pb").write_bytes(b"not a graph")
    integrity.seal(str(version))
    with pytest.raises(DataError, match=r"does not load: "):
        verify(str(version))


def test_base_path_and_absent_directory_say_what_to_name(exported: Path) -> None:
    with pytest.raises(DataError, match=r"name one of its versions: .*/1$"):
        verify(str(exported.parent))
    with pytest.raises(DataError, match=r"no such directory"):
        verify(str(exported / "absent"))


def test_golden_strings_survive(tmp_path: Path) -> None:
    requests = {
        "bytes": np.array([b"\xff\xd8\0\0", b"", b"\0"], object),
        "grid": np.array([["a", "bc"], ["", "d"], ["ö", "f"]], object),
        "ids": np.arange(3, dtype=np.int64),
    }
    golden.write(str(tmp_path), golden.Golden(requests, {"y": np.zeros([3, 2], np.float32)}, 0.1))
    back = golden.read(str(tmp_path))
    assert back.requests["bytes"].tolist() == [b"\xff\xd8\0\0", b"", b"\0"]
    assert back.requests["grid"].tolist() == [[b"a", b"bc"], [b"", b"d"], ["ö".encode(), b"f"]]
    assert back.requests["ids"].dtype == np.int64
    assert (back.tolerance, back.num_requests) == (0.1, 3)


Python = Callable[..., subprocess.CompletedProcess[str]]


def test_command_prints_one_line_and_no_noise(exported: Path, python: Python) -> None:
    done = python("-m", "export.verify", str(exported))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"ok | {exported} | ")
    assert done.stdout.count("\n") == 1


def test_command_refuses_with_2_in_both_forms(version: Path, python: Python) -> None:
    flip(version / DATA, 100)
    done = python("-m", "export.verify", str(version), "--json")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {version / DATA}: sha256 is ")
    assert done.stderr.count("\n") == 1
    answer = json.loads(done.stdout)
    assert not answer["ok"]
    assert str(version / DATA) in answer["error"]


@pytest.mark.parametrize("module", ["export.verify", "export.saved_model"])
def test_help_is_immediate(module: str, python: Python) -> None:
    start = time.monotonic()
    done = python("-m", module, "--help")
    assert time.monotonic() - start < 1
    assert (done.returncode, done.stderr) == (0, "")
    assert f"python -m {module}" in done.stdout
    assert "Exit codes:" in done.stdout


def test_absent_run_is_refused_at_once(tmp_path: Path, python: Python) -> None:
    done = python("-m", "export.saved_model", str(tmp_path / "absent"))
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path}/absent: no such directory; name a run's --run_dir\n"
