"""The parts of a step add up to the step; tracing and validation are left out."""

import dataclasses

import pytest

from trainer.monitor.step_times import StepTimes


@dataclasses.dataclass
class Output:
    input_s: float
    run_s: float


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_parts_add_up():
    clock = Clock()
    times = StepTimes(64, clock)
    clock.now += 9.0
    times.add(Output(input_s=1.0, run_s=9.0), 10)  # Traces.
    for _ in range(2):
        clock.now += 2.5
        times.add(Output(input_s=0.5, run_s=2.0), 10)
    clock.now += 0.4
    times.add_backup(0.4)
    clock.now += 3.0
    times.leave_out(3.0)
    line = times.take()
    assert times.first_loop_s == 9.0
    assert line["step_ms"] == pytest.approx(1000 * 5.4 / 20)
    assert line["input_ms"] == pytest.approx(50)
    assert line["compute_ms"] == pytest.approx(150)
    assert line["backup_ms"] == pytest.approx(20)
    parts = ("input_ms", "compute_ms", "backup_ms", "other_ms")
    assert sum(line[part] for part in parts) == pytest.approx(line["step_ms"])
    assert line["examples_per_s"] == pytest.approx(64 * 20 / 5.4)
    assert times.examples_per_s == pytest.approx(64 * 20 / 5.4)


def test_an_interval_without_steps_says_nothing():
    assert StepTimes(64, Clock()).take() == {}
