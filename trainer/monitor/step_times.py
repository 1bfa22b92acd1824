"""Where the time of a step goes, per log interval.

    times = StepTimes(examples_per_step=64)
    times.add(output, steps=10)
    times.take()       # {"step_ms": …, "input_ms": …, …, "examples_per_s": …}

The parts add up to `step_ms`. `compute_ms` includes the exchange of gradients.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class _Output(Protocol):
    @property
    def input_s(self) -> float: ...
    @property
    def run_s(self) -> float: ...


class StepTimes:
    """Adds up the parts of step time; the first loop, which traces, is kept apart."""

    def __init__(self, examples_per_step: int, clock: Callable[[], float] = time.perf_counter):
        self._examples_per_step = examples_per_step
        self._clock = clock
        self.first_loop_s: float | None = None
        """Seconds of the first loop, tracing included; in no interval."""
        self._all_steps = 0
        self._all_s = 0.0
        self._reset()

    def add(self, output: _Output, steps: int) -> None:
        """Adds a loop of `steps` steps that has just ended."""
        if self.first_loop_s is None:
            self.first_loop_s = output.run_s
            self._reset()
            return
        self._steps += steps
        self._input_s += output.input_s
        self._run_s += output.run_s

    def add_backup(self, seconds: float) -> None:
        """Adds time that a backup took."""
        self._backup_s += seconds

    def leave_out(self, seconds: float) -> None:
        """Takes time that belongs to no step, such as validation, out of the interval."""
        self._left_out_s += seconds

    def take(self) -> dict[str, float]:
        """Returns the means of the interval, in ms a step, and begins the next one."""
        if not self._steps:
            self._reset()
            return {}
        total_s = self._clock() - self._start - self._left_out_s
        self._all_steps += self._steps
        self._all_s += total_s
        to_ms = 1000 / self._steps
        parts = {
            "examples_per_s": self._examples_per_step * self._steps / total_s,
            "step_ms": total_s * to_ms,
            "input_ms": self._input_s * to_ms,
            "compute_ms": (self._run_s - self._input_s) * to_ms,
            "backup_ms": self._backup_s * to_ms,
            "other_ms": (total_s - self._run_s - self._backup_s) * to_ms,
        }
        self._reset()
        return parts

    @property
    def examples_per_s(self) -> float:
        """Examples per second over all intervals so far; 0 before the first."""
        return self._examples_per_step * self._all_steps / self._all_s if self._all_s else 0.0

    def _reset(self) -> None:
        self._start = self._clock()
        self._steps = 0
        self._input_s = self._run_s = self._backup_s = self._left_out_s = 0.0
