"""Starts the tasks of a cluster, and starts them all again after a retryable exit.

    supervisor = Supervisor(make_tasks, run_dir, max_restarts=10)
    with supervisor.handling_signals():
        code = supervisor.run()

After a task is lost its peers cannot go on, so a restart is always one of all tasks.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import BinaryIO

from trainer import errors
from trainer.child_process import ChildProcess, Task

_POLL_S = 0.05
_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 30.0
_WORTH_SHOWING = re.compile(rb"(WARNING|ERROR|CRITICAL|FATAL|error|stopped)\b")


class Supervisor:
    """Runs all tasks of this machine to their common end."""

    def __init__(
        self,
        make_tasks: Callable[[], Sequence[Task]],
        run_dir: str,
        *,
        max_restarts: int,
        leave_s: float = 15.0,
        grace_s: float = 60.0,
        write_cluster: bool = True,
        out: BinaryIO | None = None,
        say: Callable[[str], None] | None = None,
        backoff_s: float = _FIRST_BACKOFF_S,
    ):
        """Prepares; starts nothing.

        Args:
          make_tasks: returns the tasks of a start, with ports that are free now. The first
            one is shown live on `out`, of the others only warnings and errors.
          run_dir: gets `logs/` and `cluster.json`; its `metrics.jsonl` tells progress.
          max_restarts: restarts in a row without progress before giving up.
          leave_s: seconds that tasks have to notice that a peer was lost; more than the
            heartbeat timeout, after which they leave by themselves.
          grace_s: seconds that tasks have to save their state after SIGTERM.
          write_cluster: whether `cluster.json` is written.
          out: standard output by default.
          say: told what the supervisor does; lines on standard error by default.
          backoff_s: pause before the first restart; doubled each time, up to 30 s.
        """
        self._make_tasks = make_tasks
        self._run_dir = run_dir
        self._max_restarts = max_restarts
        self._leave_s = leave_s
        self._grace_s = grace_s
        self._write_cluster = write_cluster
        self._out = out or sys.stdout.buffer
        self._out_lock = threading.Lock()
        self._bar_is_shown = False
        self._say = say or _say
        self._first_backoff_s = backoff_s
        self._stop_requests = 0

    def run(self) -> int:
        """Runs to the end and returns the exit code.

        0: all tasks returned 0. A permanent code is returned as it came; 138 after too many
        restarts; 143 if `request_stop` was called, after SIGTERM and a grace period for all.
        """
        os.makedirs(os.path.join(self._run_dir, "logs"), exist_ok=True)
        backoff_s = self._first_backoff_s
        restarts = 0
        progress = self._progress()
        while True:
            code = self._run_once()
            if code not in errors.RETRYABLE:
                return code
            if self._stop_requests:
                return errors.STOPPED
            # The file shrinks when a run falls back to an older backup: only what was
            # never reached before counts.
            if self._progress() > progress:
                progress = self._progress()
                restarts, backoff_s = 0, self._first_backoff_s
            if restarts >= self._max_restarts:
                self._say(
                    f"gave up after {restarts} restarts without progress "
                    f"(cluster.max_restarts={self._max_restarts}); logs: {self._run_dir}/logs"
                )
                return errors.RETRY
            restarts += 1
            self._say(f"restart {restarts} of at most {self._max_restarts} in {backoff_s:g} s")
            if self._pause(backoff_s):
                return errors.STOPPED
            backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)

    def request_stop(self) -> None:
        """Asks all tasks to save and end; the second time, kills them."""
        self._stop_requests += 1

    @contextlib.contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Turns SIGINT, SIGTERM and SIGHUP into `request_stop` while the block runs."""

        def handle(number: int, frame: FrameType | None) -> None:
            self.request_stop()

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _run_once(self) -> int:
        """Starts all tasks and returns the code they ended with: `RETRY` for any loss."""
        children: list[ChildProcess] = []
        try:
            for task in self._make_tasks():
                children.append(ChildProcess(task, self._log_path(task)))
            self._write_cluster_json(children)
            for index, child in enumerate(children):
                child.follow(self._echo_all if index == 0 else self._echo_warnings)
            return self._wait(children)
        finally:
            for child in children:
                child.signal(signal.SIGKILL)
            for child in children:
                child.close()

    def _wait(self, children: list[ChildProcess]) -> int:
        lost: set[str] = set()
        kill_at = float("inf")
        stopping = False
        while True:
            codes = {child: child.poll() for child in children}
            running = [child for child, code in codes.items() if code is None]
            for child, code in codes.items():
                if code is not None and _permanent(code) and not stopping:
                    self._stop(running)
                    self._report(child, code, shown=child is children[0])
                    return code
            if self._stop_requests and not stopping and running:
                stopping = True
                kill_at = time.monotonic() + self._grace_s
                self._say(f"stopping: up to {self._grace_s:g} s to save; again to kill")
                for child in running:
                    child.signal(signal.SIGTERM)
            elif not stopping:
                for child, code in codes.items():
                    if code and child.task.name not in lost:
                        lost.add(child.task.name)
                        self._say(f"{child.task.name} {_explain(code)}")
                        wait_s = self._grace_s if code == errors.STOPPED else self._leave_s
                        # Once one has left, the others should follow.
                        kill_at = min(kill_at, time.monotonic() + wait_s)
            if running and (time.monotonic() > kill_at or self._stop_requests > 1):
                for child in running:
                    self._say(f"{child.task.name} has not ended: killed")
                    lost.add(child.task.name)
                    child.signal(signal.SIGKILL)
                    child.close()
                continue
            if not running:
                if not any(codes.values()):
                    return errors.OK
                return errors.STOPPED if stopping else errors.RETRY
            time.sleep(_POLL_S)

    def _stop(self, children: list[ChildProcess]) -> None:
        """Ends tasks that have nothing to go on with, politely first."""
        for child in children:
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + min(self._grace_s, self._leave_s)
        while time.monotonic() < deadline and self._stop_requests < 2:
            if all(child.poll() is not None for child in children):
                return
            time.sleep(_POLL_S)
        for child in children:
            child.signal(signal.SIGKILL)

    def _report(self, child: ChildProcess, code: int, *, shown: bool) -> None:
        """Says how a task failed; shows the end of its log if it is not on the terminal."""
        child.close()
        self._say(f"{child.task.name} {_explain(code)}; log: {child.log_path}")
        for line in () if shown else child.tail:
            self._say(f"  {line}")

    def _pause(self, seconds: float) -> bool:
        """Waits; returns whether a stop was requested meanwhile."""
        deadline = time.monotonic() + seconds
        while not self._stop_requests and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return bool(self._stop_requests)

    def _progress(self) -> int:
        try:
            return os.path.getsize(os.path.join(self._run_dir, "metrics.jsonl"))
        except OSError:
            return 0

    def _log_path(self, task: Task) -> str:
        return os.path.join(self._run_dir, "logs", task.name.replace("/", "-") + ".log")

    def _write_cluster_json(self, children: list[ChildProcess]) -> None:
        if not self._write_cluster:
            return
        tasks = [
            {
                "task": child.task.name,
                "pid": child.pid,
                "address": child.task.address,
                "log": child.log_path,
            }
            for child in children
        ]
        path = os.path.join(self._run_dir, "cluster.json")
        with open(path + ".tmp", "w") as file:
            json.dump({"tasks": tasks}, file, indent=2)
            file.write("\n")
        os.replace(path + ".tmp", path)

    def _echo_all(self, task: Task, line: bytes) -> None:
        bar = line.startswith(b"\r")
        # Nobody may be reading any more; the log has it all.
        with self._out_lock, contextlib.suppress(OSError, ValueError):
            if self._bar_is_shown:
                self._out.write(b"\r\x1b[K")
            self._bar_is_shown = bar
            self._out.write(line.rstrip(b"\n") if bar else line)
            self._out.flush()

    def _echo_warnings(self, task: Task, line: bytes) -> None:
        if _WORTH_SHOWING.match(line):
            self._echo_all(task, f"{task.name}: ".encode() + line)


def _permanent(code: int) -> bool:
    return code > 0 and code not in errors.RETRYABLE


def _explain(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with {code}"


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        print(f"launch: {line}", file=sys.stderr, flush=True)
