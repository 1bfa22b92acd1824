"""Version directories appear whole, in order, once; also with several publishers and kills."""

from __future__ import annotations

import concurrent.futures
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from export import files, versions
from trainer.errors import ConfigError

PUBLISHER = """
import json, os, sys
from export import versions
base, name, rounds, keep = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
published = {}
for i in range(rounds):
    staging = versions.stage(base)
    os.mkdir(staging + "/variables")
    for file in ("variables/data", "saved_model.pb"):
        with open(f"{staging}/{file}", "w") as out:
            out.write(f"{name} {i}")
    number = versions.publish(staging, base)
    published[number] = f"{name} {i}"
    versions.prune(base, keep=keep, protect=number)
    versions.sweep(base)
print(json.dumps(published))
"""


def fill(staging: str, text: str = "graph") -> str:
    Path(staging, "saved_model.pb").write_text(text)
    return staging


class Poller(threading.Thread):
    """Looks at a base path all the time, as TF Serving does, only oftener."""

    def __init__(self, base: Path):
        super().__init__(daemon=True)
        self.base, self.looks, self.incomplete = base, 0, list[str]()
        self.newest = list[int]()
        self._stop_it = threading.Event()

    def run(self) -> None:
        while not self._stop_it.is_set():
            self.looks += 1
            names = [n for n in os.listdir(self.base) if n.isdigit()] if self.base.exists() else []
            for name in names:
                version = self.base / name
                if not (version / "saved_model.pb").exists() and version.exists():
                    self.incomplete.append(name)
            self.newest.append(max(map(int, names), default=0))
            time.sleep(0.001)

    def __enter__(self) -> Poller:
        self.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._stop_it.set()
        self.join()


def test_versions_count_up_and_leave_nothing_else(tmp_path: Path) -> None:
    base = str(tmp_path / "model")
    assert versions.list_versions(base) == []
    numbers = [versions.publish(fill(versions.stage(base)), base) for _ in range(3)]
    assert numbers == [1, 2, 3]
    assert sorted(os.listdir(base)) == ["1", "2", "3"]


def test_next_version_follows_the_largest_number_not_the_count(tmp_path: Path) -> None:
    for name in ("2", "0010", "tmp-99", ".staging-11", "9x"):
        (tmp_path / name).mkdir()
    base = str(tmp_path)
    assert versions.publish(fill(versions.stage(base)), base) == 11


def test_published_version_is_readable_by_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        staging = versions.stage(str(tmp_path))
    finally:
        os.umask(before)
    assert os.stat(staging).st_mode & 0o777 == 0o755


def test_existing_version_is_never_replaced(tmp_path: Path) -> None:
    base = str(tmp_path)
    versions.publish(fill(versions.stage(base), "old"), base, version=7)
    staging = fill(versions.stage(base), "new")
    with pytest.raises(ConfigError, match=r"/7: exists already"):
        versions.publish(staging, base, version=7)
    assert (tmp_path / "7" / "saved_model.pb").read_text() == "old"
    assert versions.publish(staging, base) == 8


def test_prune_keeps_the_newest_and_the_protected(tmp_path: Path) -> None:
    base = str(tmp_path)
    for _ in range(6):
        versions.publish(fill(versions.stage(base)), base)
    assert versions.prune(base, keep=0, protect=6) == []
    assert versions.prune(base, keep=2, protect=1) == [2, 3, 4]
    assert sorted(os.listdir(base)) == ["1", "5", "6"]


def test_sweep_deletes_only_what_nobody_fills(tmp_path: Path) -> None:
    base = str(tmp_path)
    mine = versions.stage(base)
    host = os.path.basename(mine).removeprefix(".staging-").rsplit("-", 2)[0]
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    other = tmp_path / f".staging-{host}-{os.getppid()}-0a"
    old = tmp_path / ".staging-another-host.local-12-0b"
    fresh = tmp_path / ".staging-another-host.local-13-0c"
    for path in (tmp_path / f".staging-{host}-{dead.pid}-0d", tmp_path / ".trash-3-0e"):
        path.mkdir()
    for path in (other, old, fresh):
        path.mkdir()
    two_hours_ago = time.time() - 7200
    os.utime(old, (two_hours_ago, two_hours_ago))
    swept = versions.sweep(base)
    assert sorted(swept) == sorted([f".staging-{host}-{dead.pid}-0d", ".trash-3-0e", old.name])
    assert sorted(os.listdir(base)) == sorted([os.path.basename(mine), other.name, fresh.name])


@pytest.fixture
def publishers(child_env: Callable[..., dict[str, str]]) -> Iterator[Callable[..., list[dict]]]:
    """Returns a function that runs several publishing processes and returns their results."""
    running: list[subprocess.Popen[str]] = []

    def run(base: Path, *, count: int, rounds: int, keep: int) -> list[dict]:
        for i in range(count):
            command = [sys.executable, "-c", PUBLISHER, str(base), f"p{i}", str(rounds), str(keep)]
            running.append(
                subprocess.Popen(command, env=child_env(), stdout=subprocess.PIPE, text=True)
            )
        outputs = [process.communicate(timeout=60)[0] for process in running]
        assert [process.returncode for process in running] == [0] * count
        return [json.loads(output) for output in outputs]

    yield run
    for process in running:
        process.kill()


def test_concurrent_publishers_all_succeed_and_overwrite_nothing(
    tmp_path: Path, publishers: Callable[..., list[dict]]
) -> None:
    base = tmp_path / "model"
    with Poller(base) as poller:
        results = publishers(base, count=3, rounds=20, keep=0)
    assert sum(len(published) for published in results) == 60
    assert sorted(map(int, os.listdir(base))) == list(range(1, 61))
    for published in results:
        for number, text in published.items():
            assert (base / number / "saved_model.pb").read_text() == text
            assert (base / number / "variables" / "data").read_text() == text
    assert poller.looks > 10
    assert poller.incomplete == []


def test_newest_version_never_goes_back_while_old_ones_are_pruned(
    tmp_path: Path, publishers: Callable[..., list[dict]]
) -> None:
    base = tmp_path / "model"
    with Poller(base) as poller:
        results = publishers(base, count=3, rounds=20, keep=2)
    numbers = sorted(int(number) for published in results for number in published)
    assert numbers == list(range(1, 61))
    assert sorted(os.listdir(base)) == ["59", "60"]
    assert poller.incomplete == []
    assert poller.newest == sorted(poller.newest)


def test_publishers_agree_without_locks_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*unused: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    base = str(tmp_path)

    def publish(i: int) -> int:
        return versions.publish(fill(versions.stage(base), str(i)), base)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(publish, range(80)))
    assert sorted(numbers) == list(range(1, 81))
    for i, number in enumerate(numbers):
        assert (tmp_path / str(number) / "saved_model.pb").read_text() == str(i)


def test_other_file_systems_get_the_graph_last(monkeypatch: pytest.MonkeyPatch) -> None:
    base = "ram://export/model"
    copied = []
    copy = files.copy

    def record(source: str, target: str) -> None:
        copied.append(target)
        copy(source, target)

    monkeypatch.setattr(files, "copy", record)
    for expected in (1, 2, 3):
        staging = fill(versions.stage(base))
        os.mkdir(f"{staging}/variables")
        Path(staging, "variables", "data").write_text("x")
        assert versions.publish(staging, base) == expected
        assert not os.path.exists(staging)
        assert copied[-1] == f"{base}/{expected}/saved_model.pb"
    assert versions.prune(base, keep=1, protect=3) == [1, 2]
    assert files.list_names(base) == ["3"]
    assert list(files.walk(f"{base}/3")) == ["saved_model.pb", "variables/data"]
