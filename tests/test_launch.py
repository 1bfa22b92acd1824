"""The supervisor with real processes: every kind of exit, signals, restarts, leftovers.

The tasks are a few lines of Python each, so that a test takes a fraction of a second.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from trainer import errors, launch
from trainer.child_process import Task
from trainer.supervisor import Supervisor

# What a task sees: its index, and how often it was started before, in this directory.
PRELUDE = """
import os, signal, sys, time
index = int(os.environ["INDEX"])
starts = f"starts-{index}"
start = os.path.getsize(starts) if os.path.exists(starts) else 0
open(starts, "a").write("x")
print(f"start {start}", flush=True)

def others_left():
    time.sleep(0.1)
    sys.exit(138)
"""
WAIT = "time.sleep(60)"


class Result:
    def __init__(self, code: int, said: list[str], out: str, run_dir: Path):
        self.code, self.said, self.out, self.run_dir = code, said, out, run_dir

    def starts(self, index: int) -> int:
        return os.path.getsize(self.run_dir / f"starts-{index}")

    def log(self, index: int) -> str:
        return (self.run_dir / "logs" / f"worker-{index}.log").read_text()


def tasks(bodies: Sequence[str], directory: Path) -> list[Task]:
    return [
        Task(
            name=f"worker/{index}",
            command=[
                sys.executable,
                "-c",
                f"import os; os.chdir({str(directory)!r})\n{PRELUDE}\n{textwrap.dedent(body)}",
            ],
            env={**os.environ, "INDEX": str(index)},
            address=f"127.0.0.1:{1000 + index}",
        )
        for index, body in enumerate(bodies)
    ]


@pytest.fixture
def supervise(tmp_path: Path) -> Callable[..., Result]:
    """Runs a supervisor over tasks given as Python code; `during(supervisor)` beside it."""

    def run(
        *bodies: str,
        max_restarts: int = 3,
        during: Callable[[Supervisor], Any] | None = None,
        **options: Any,
    ) -> Result:
        said: list[str] = []
        out = io.BytesIO()
        settings = {"leave_s": 5.0, "grace_s": 5.0, "backoff_s": 0.01} | options
        supervisor = Supervisor(
            lambda: tasks(bodies, tmp_path),
            str(tmp_path),
            max_restarts=max_restarts,
            out=out,
            say=said.append,
            **settings,
        )
        thread = threading.Thread(target=during, args=[supervisor]) if during else None
        if thread:
            thread.start()
        code = supervisor.run()
        if thread:
            thread.join()
        return Result(code, said, out.getvalue().decode(), tmp_path)

    return run


def wait_for(condition: Callable[[], Any], timeout_s: float = 10) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise TimeoutError("condition not met")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# Exits


def test_all_done(supervise: Callable[..., Result]) -> None:
    result = supervise("print('chief')", "print('quiet'); print('WARNING odd')")
    assert result.code == errors.OK
    # Two pipes: their lines may come in any order.
    assert sorted(result.out.splitlines()) == ["chief", "start 0", "worker/1: WARNING odd"]
    assert result.log(1) == "start 0\nquiet\nWARNING odd\n"
    assert result.said == []
    cluster = json.loads((result.run_dir / "cluster.json").read_text())
    assert [t["task"] for t in cluster["tasks"]] == ["worker/0", "worker/1"]
    assert all(set(t) == {"task", "pid", "address", "log"} for t in cluster["tasks"])
    assert Path(cluster["tasks"][1]["log"]).read_text() == result.log(1)


def test_the_progress_bar_is_drawn_over_and_not_logged(supervise: Callable[..., Result]) -> None:
    bar = 'print("\\rbar 1", flush=True); print("\\rbar 2", flush=True); print("result")'
    result = supervise(bar)
    clear = "\r\x1b[K"
    assert result.out == f"start 0\n\rbar 1{clear}\rbar 2{clear}result\n"
    assert result.log(0) == "start 0\nresult\n"


@pytest.mark.parametrize("code", [1, 2, 3, 126, 127, 137])
def test_permanent_exit_stops_the_others(supervise: Callable[..., Result], code: int) -> None:
    start = time.monotonic()
    result = supervise(
        f"signal.signal(signal.SIGTERM, lambda *a: sys.exit(0)); {WAIT}",
        f"time.sleep(0.2); print('the reason'); sys.exit({code})",
    )
    assert result.code == code
    assert result.starts(1) == 1
    assert f"worker/1 exited with {code}" in result.said[0]
    assert "  the reason" in result.said
    assert time.monotonic() - start < 4


def test_a_task_that_ignores_sigterm_is_killed(supervise: Callable[..., Result]) -> None:
    result = supervise(
        f"signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); {WAIT}",
        "time.sleep(0.3); sys.exit(2)",
        leave_s=0.3,
    )
    assert result.code == 2


def test_permanent_exit_wins_over_the_peers_it_took_down(
    supervise: Callable[..., Result],
) -> None:
    result = supervise("sys.exit(138)", "time.sleep(0.4); sys.exit(1)")
    assert result.code == 1
    assert result.starts(0) == 1


@pytest.mark.parametrize(
    "end", ["sys.exit(138)", "sys.exit(143)", "os.kill(os.getpid(), 9)", "os.abort()"]
)
def test_retryable_exit_restarts_all(supervise: Callable[..., Result], end: str) -> None:
    result = supervise("if start == 0: others_left()", f"if start == 0: {end}")
    assert result.code == errors.OK
    assert (result.starts(0), result.starts(1)) == (2, 2)
    assert result.log(1) == "start 0\nstart 1\n"
    assert any(line.startswith("restart 1 of at most 3") for line in result.said)


def test_a_peer_that_does_not_leave_is_killed_in_time(supervise: Callable[..., Result]) -> None:
    start = time.monotonic()
    result = supervise(f"if start == 0: {WAIT}", "if start == 0: sys.exit(138)", leave_s=0.3)
    assert result.code == errors.OK
    assert "worker/0 has not ended: killed" in result.said
    assert time.monotonic() - start < 5


def test_a_stopped_peer_is_killed_in_time(supervise: Callable[..., Result]) -> None:
    hang = "if start == 0: os.kill(os.getpid(), signal.SIGSTOP)"
    result = supervise("if start == 0: others_left()", hang, leave_s=0.3)
    assert result.code == errors.OK
    assert result.starts(1) == 2


def test_peers_of_a_task_that_saved_may_take_the_grace_period(
    supervise: Callable[..., Result],
) -> None:
    saving = "if start == 0: time.sleep(0.6); print('saved'); sys.exit(143)"
    result = supervise(saving, "if start == 0: sys.exit(143)", leave_s=0.1, grace_s=5)
    assert result.code == errors.OK
    assert "saved" in result.out


def test_gives_up_without_progress(supervise: Callable[..., Result]) -> None:
    result = supervise("sys.exit(138)", max_restarts=2)
    assert result.code == errors.RETRY
    assert result.starts(0) == 3
    assert "gave up after 2 restarts without progress" in result.said[-1]


def test_no_restarts_when_none_are_allowed(supervise: Callable[..., Result]) -> None:
    result = supervise("os.kill(os.getpid(), 9)", max_restarts=0)
    assert result.code == errors.RETRY
    assert result.starts(0) == 1


def test_progress_renews_the_restarts_and_the_backoff(supervise: Callable[..., Result]) -> None:
    body = "open('metrics.jsonl', 'a').write('{}\\n'); sys.exit(138 if start < 5 else 0)"
    result = supervise(body, max_restarts=1)
    assert result.code == errors.OK
    assert result.starts(0) == 6
    restarts = [line for line in result.said if line.startswith("restart")]
    assert restarts == ["restart 1 of at most 1 in 0.01 s"] * 5


def test_going_back_is_not_progress(supervise: Callable[..., Result]) -> None:
    body = "open('metrics.jsonl', 'w').write('x' * (1 + start % 2 if start else 3)); sys.exit(138)"
    result = supervise(body, max_restarts=2)
    assert result.code == errors.RETRY
    # The third start wrote more than the second, but not more than the first.
    assert result.starts(0) == 3


def test_backoff_doubles(supervise: Callable[..., Result]) -> None:
    result = supervise("sys.exit(138)", max_restarts=4, backoff_s=0.02)
    pauses = [line.split()[-2] for line in result.said if line.startswith("restart")]
    assert pauses == ["0.02", "0.04", "0.08", "0.16"]


def test_a_command_that_does_not_exist_leaves_nothing_behind(tmp_path: Path) -> None:
    first = tasks([WAIT], tmp_path)[0]
    made: list[int] = []
    supervisor = Supervisor(
        lambda: [first, Task("worker/1", ["/no/such/program"], {})],
        str(tmp_path),
        max_restarts=0,
        say=lambda line: made.append(1),
    )
    with pytest.raises(FileNotFoundError):
        supervisor.run()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert not any(is_alive(int(pid)) for pid in children)


# Stop requests


def test_stop_lets_the_tasks_save(supervise: Callable[..., Result], tmp_path: Path) -> None:
    save = """
    def save(*unused):
        time.sleep(0.3)
        print("saved", flush=True)
        sys.exit(143)
    signal.signal(signal.SIGTERM, save)
    open(f"ready-{index}", "w").close()
    time.sleep(60)
    """

    def stop(supervisor: Supervisor) -> None:
        wait_for(lambda: all((tmp_path / f"ready-{i}").exists() for i in range(2)))
        supervisor.request_stop()

    result = supervise(save, save, during=stop)
    assert result.code == errors.STOPPED
    assert result.log(0) == result.log(1) == "start 0\nsaved\n"
    assert result.starts(0) == 1


@pytest.mark.parametrize("requests", [1, 2])
def test_stop_kills_after_the_grace_period_or_the_second_request(
    supervise: Callable[..., Result], tmp_path: Path, requests: int
) -> None:
    deaf = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready', 'w').close(); {WAIT}"

    def stop(supervisor: Supervisor) -> None:
        wait_for((tmp_path / "ready").exists)
        supervisor.request_stop()
        time.sleep(0.2)
        for _ in range(requests - 1):
            supervisor.request_stop()

    start = time.monotonic()
    result = supervise(deaf, during=stop, grace_s=0.5 if requests == 1 else 60)
    assert result.code == errors.STOPPED
    assert time.monotonic() - start < 10


def test_stop_during_the_backoff(supervise: Callable[..., Result], tmp_path: Path) -> None:
    def stop(supervisor: Supervisor) -> None:
        wait_for((tmp_path / "starts-0").exists)
        time.sleep(0.5)
        supervisor.request_stop()

    result = supervise("sys.exit(138)", during=stop, backoff_s=60)
    assert result.code == errors.STOPPED


SUPERVISE = """
import sys
from pathlib import Path
from tests.test_launch import tasks
from trainer.supervisor import Supervisor
directory = Path(sys.argv[1])
s = Supervisor(lambda: tasks(sys.argv[2:], directory), str(directory), max_restarts=0)
with s.handling_signals():
    sys.exit(s.run())
"""


@pytest.fixture
def supervisor_process(
    child_env: Callable[..., dict[str, str]], tmp_path: Path
) -> Callable[..., tuple[subprocess.Popen, list[int]]]:
    """Starts a supervisor as a process; returns it and the process ids of its tasks."""

    def start(*bodies: str) -> tuple[subprocess.Popen, list[int]]:
        process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISE, str(tmp_path), *bodies],
            env=child_env(),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        cluster = tmp_path / "cluster.json"
        wait_for(cluster.exists)
        wait_for(lambda: all((tmp_path / f"ready-{i}").exists() for i in range(len(bodies))))
        return process, [task["pid"] for task in json.loads(cluster.read_text())["tasks"]]

    return start


READY = "open(f'ready-{index}', 'w').close()"
SAVES = f"signal.signal(15, lambda *a: sys.exit(143)); {READY}; {WAIT}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_forwarded(supervisor_process: Callable, number: signal.Signals) -> None:
    process, pids = supervisor_process(SAVES, SAVES)
    # To the whole group, as a terminal does it.
    os.killpg(process.pid, number)
    assert process.wait(10) == errors.STOPPED
    assert not any(map(is_alive, pids))


def test_second_ctrl_c_kills(supervisor_process: Callable) -> None:
    process, pids = supervisor_process(f"signal.signal(15, signal.SIG_IGN); {READY}; {WAIT}")
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    assert process.wait(10) == errors.STOPPED
    assert not any(map(is_alive, pids))


def test_no_task_outlives_a_killed_supervisor(supervisor_process: Callable) -> None:
    process, pids = supervisor_process(SAVES, f"signal.signal(15, signal.SIG_IGN); {READY}; {WAIT}")
    process.kill()
    process.wait()
    wait_for(lambda: not any(map(is_alive, pids)), timeout_s=3)


def test_a_tasks_own_children_end_with_it(supervise: Callable[..., Result], tmp_path: Path) -> None:
    body = """
    import subprocess
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    open("grandchild", "w").write(str(child.pid))
    """
    start = time.monotonic()
    assert supervise(body).code == errors.OK
    assert time.monotonic() - start < 5
    pid = int((tmp_path / "grandchild").read_text())
    wait_for(lambda: not is_alive(pid), timeout_s=3)


# The command


CONFIG = """
from trainer.config import Experiment, ModelConfig, TrainConfig
from input_pipeline.config import DataConfig

def get_config():
    return Experiment(
        model=ModelConfig(builder="m:f"),
        data=DataConfig(train="memory:m:data"),
        train=TrainConfig(epochs=1),
    )
"""
CLUSTER = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.py"
    path.write_text(CONFIG)
    return f"--config={path}"


def test_help_is_fast_and_needs_no_tensorflow(python: Callable) -> None:
    watch = (
        "import runpy, sys, time; start = time.monotonic(); sys.argv = ['launch', '--help']\n"
        "try: runpy.run_module('trainer.launch', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)\n"
        "assert time.monotonic() - start < 1"
    )
    result = python("-c", watch)
    assert result.returncode == 0, result.stderr
    assert "--workers" in result.stdout or "--[no]workers" in result.stdout
    assert "trainer.launch --workers=2" in result.stdout


@pytest.mark.parametrize(
    ("flags", "tf_config", "words"),
    [
        (["--run_dir=r"], "", "--workers=: say how many"),
        (["--workers=0", "--run_dir=r"], "", "--workers=0"),
        (["--workers=x", "--run_dir=r"], "", "workers"),
        (["--workers=2"], "", "--run_dir="),
        (["--workers=2", "--run_dir=gs://b/r"], "", "--run_dir=gs://b/r: name a local"),
        (["--workers=2", "--run_dir=r"], json.dumps(CLUSTER), "Unset TF_CONFIG"),
        (["--run_dir=r"], "{'cluster': 1}", "single quotes"),
        (["--workers=2", "--run_dir=r", "--config.cluster.expected_workers=3"], "", "=3"),
        (["--run_dir=r", "--config.cluster.expected_workers=3"], json.dumps(CLUSTER), "=3"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    capfd: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    config: str,
    flags: list[str],
    tf_config: str,
    words: str,
) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config)
    assert launch.main(["launch", config, *flags]) == errors.CONFIG
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[Task]]:
    """Collects what would be started, once for each of two starts."""
    starts: list[list[Task]] = []

    def run(self: Any) -> int:
        starts.extend(list(self._make_tasks()) for _ in range(2))
        return 0

    monkeypatch.setattr(Supervisor, "run", run)
    for name in ("TF_CONFIG", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return starts


def test_local_cluster(started: list[list[Task]], config: str, tmp_path: Path) -> None:
    flags = ["--workers=2", "--config.train.seed=3", f"--run_dir={tmp_path}"]
    assert launch.main(["launch", config, *flags]) == 0
    for tasks_ in started:
        specs = [json.loads(task.env["TF_CONFIG"]) for task in tasks_]
        assert [spec["task"]["index"] for spec in specs] == [0, 1]
        assert all(spec["cluster"] == specs[0]["cluster"] for spec in specs)
        assert [task.address for task in tasks_] == specs[0]["cluster"]["worker"]
        command = [*(sys.executable, "-m", "trainer.task"), config, flags[1], flags[2]]
        assert all(list(task.command) == command for task in tasks_)
        cores = max(1, len(os.sched_getaffinity(0)) // 2)
        assert tasks_[0].env["TF_NUM_INTRAOP_THREADS"] == str(cores)
    # Ports of the first start may still be busy at the second.
    assert {t.address for t in started[0]}.isdisjoint({t.address for t in started[1]})


def test_threads_the_user_chose_are_kept(
    started: list[list[Task]], config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "7")
    launch.main(["launch", config, "--workers=2", "--run_dir=r"])
    assert started[0][0].env["TF_NUM_INTRAOP_THREADS"] == "7"


def test_task_of_a_larger_cluster(
    started: list[list[Task]], config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps(CLUSTER))
    assert launch.main(["launch", config, "--run_dir=r"]) == 0
    (task,) = started[0]
    assert (task.name, task.address) == ("worker/1", "b:1")
    assert json.loads(task.env["TF_CONFIG"]) == CLUSTER
    assert "TF_NUM_INTRAOP_THREADS" not in task.env or "TF_NUM_INTRAOP_THREADS" in os.environ
