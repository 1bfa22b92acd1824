"""What the chief prints: a progress bar on a terminal, a few plain lines elsewhere.

    console = Console(sys.stdout, examples_per_step=64)
    console.begin_epoch(0, epochs=10, steps=23)
    console.update(10, {"loss": 0.5})
    console.end_epoch({"loss": 0.4, "val_loss": 0.45})

Lines are flushed at once and hold no control characters unless they go to a terminal: this
one, or that of `trainer.launch`, which passes the bar on and keeps it out of the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

# Without a terminal: at most this many lines inside an epoch, and none in a short one.
_LINES_PER_EPOCH = 3
_QUIET_S = 30.0
_REDRAW_S = 0.2
# Set by `trainer.launch` for the chief while its own output is a terminal. A line that begins
# with a carriage return is then the progress bar, to be drawn over.
PIPED_TO_TERMINAL = "STEADFAST_PIPED_TO_TERMINAL"


class Console:
    """Prints progress to `out`; None prints nothing."""

    def __init__(
        self,
        out: TextIO | None,
        *,
        examples_per_step: int,
        piped_to_terminal: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._out = out
        self._examples_per_step = examples_per_step
        self._clock = clock
        self._piped = piped_to_terminal
        self._live = piped_to_terminal or bool(out and out.isatty())
        self._title = ""
        self._steps = self._first = self._done = 0
        self._start = self._shown = 0.0

    def begin_epoch(self, epoch: int, *, epochs: int, steps: int, done: int = 0) -> None:
        """Starts epoch `epoch` (from 0) of `epochs`, `done` of whose `steps` are done."""
        self._title = f"epoch {epoch + 1}/{epochs}"
        self._steps, self._first, self._done = steps, done, done
        self._start = self._shown = self._clock()

    def update(self, done: int, logs: dict[str, float]) -> None:
        """Shows that `done` steps of the epoch are done."""
        self._done = done
        now = self._clock()
        if self._live:
            if now - self._shown >= _REDRAW_S:
                self._shown = now
                end = "\n" if self._piped else ""
                self._write(f"\r{self._bar()} {self._status(logs)}\x1b[K{end}")
        elif now - self._shown >= max(_QUIET_S, self._expected_s(now) / (_LINES_PER_EPOCH + 1)):
            self._shown = now
            self._write(f"{self._title} | step {done}/{self._steps} | {self._status(logs)}\n")

    def end_epoch(self, logs: dict[str, float]) -> None:
        """Shows the finished epoch's metrics, validation included."""
        clear = "\r\x1b[K" if self._live and not self._piped else ""
        seconds = self._clock() - self._start
        self._write(
            f"{clear}{self._title} | {self._steps} steps | {_metrics(logs)} | "
            f"{self._rate():,.0f} examples/s | {_duration(seconds)}\n"
        )

    def line(self, text: str) -> None:
        """Prints a line of its own."""
        self._write(text + "\n")

    def _status(self, logs: dict[str, float]) -> str:
        now = self._clock()
        left = max(0.0, self._expected_s(now) - (now - self._start))
        return f"{_metrics(logs)} | {self._rate():,.0f} examples/s | ETA {_duration(left)}"

    def _expected_s(self, now: float) -> float:
        done = self._done - self._first
        return (now - self._start) * (self._steps - self._first) / done if done else 0.0

    def _rate(self) -> float:
        seconds = self._clock() - self._start
        return (self._done - self._first) * self._examples_per_step / seconds if seconds else 0.0

    def _bar(self, width: int = 24) -> str:
        filled = width * self._done // max(1, self._steps)
        return f"{self._title} [{'=' * filled}{'.' * (width - filled)}] {self._done}/{self._steps}"

    def _write(self, text: str) -> None:
        if self._out:
            self._out.write(text)
            self._out.flush()


def _metrics(logs: dict[str, float]) -> str:
    return " ".join(f"{name} {value:.4f}" for name, value in logs.items())


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"
