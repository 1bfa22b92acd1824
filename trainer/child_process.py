"""A child process whose output goes to a log, and which never outlives this one.

    child = ChildProcess(task, "runs/digits/logs/worker-0.log")
    child.follow(echo)
    child.poll()                # None, or the exit code; -9 after SIGKILL
    child.signal(signal.SIGTERM)
    child.close()

Linux only.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_TAIL_LINES = 20
# Loaded before any fork: a child must not import or allocate much before exec.
_LIBC = ctypes.CDLL(None)


@dataclasses.dataclass(frozen=True)
class Task:
    """What to start."""

    name: str
    """Such as `worker/0`."""

    command: Sequence[str]
    env: Mapping[str, str]
    """The whole environment of the process."""

    address: str = ""
    """`HOST:PORT` it listens on; for cluster.json only."""


class ChildProcess:
    """One running task, in a session of its own."""

    def __init__(self, task: Task, log_path: str):
        """Starts the task; its output is appended to `log_path` once `follow` is called.

        Call from the main thread, and `follow` only when all are started: the child dies
        with the *thread* that made it, and forking beside running threads is unsafe.
        """
        self.task = task
        self.log_path = log_path
        self.tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        parent = os.getpid()

        def die_with_parent() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        self._process = subprocess.Popen(
            task.command,
            env=task.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C on the terminal must reach the supervisor only.
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def follow(self, echo: Callable[[Task, bytes], None]) -> None:
        """Copies output to the log and, line by line as it comes, to `echo`."""
        self._reader = threading.Thread(target=self._copy, args=[echo], daemon=True)
        self._reader.start()

    def _copy(self, echo: Callable[[Task, bytes], None]) -> None:
        assert self._process.stdout is not None
        with open(self.log_path, "ab", buffering=0) as log:
            for line in self._process.stdout:
                # The progress bar is for the terminal alone.
                if not line.startswith(b"\r"):
                    # A full disk must not stop the training by a full pipe.
                    with contextlib.suppress(OSError):
                        log.write(line)
                    self.tail.append(line.decode(errors="replace").rstrip())
                echo(self.task, line)

    def poll(self) -> int | None:
        """Returns the exit code, negative after a signal, or None while it runs."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Sends a signal to the task if it still runs; SIGKILL also to its own children."""
        if number == signal.SIGKILL:
            self._kill_session()
        elif self._process.poll() is None:
            self._process.send_signal(number)

    def close(self) -> None:
        """Ends whatever is left of the task and completes its log."""
        self._kill_session()
        self._process.wait()
        if self._reader:
            self._reader.join(5)

    def _kill_session(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
