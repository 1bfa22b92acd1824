"""The console: few plain lines without a terminal, a bar with rate and ETA on one."""

import io

from trainer.monitor.console import Console


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(out, clock, *, steps, seconds_per_step):
    console = Console(out, examples_per_step=32, clock=clock)
    console.begin_epoch(0, epochs=2, steps=steps)
    for step in range(1, steps + 1):
        clock.now += seconds_per_step
        console.update(step, {"loss": 0.5})
    console.end_epoch({"loss": 0.5, "val_loss": 0.25})
    return out.getvalue()


def test_a_short_epoch_is_one_plain_line():
    text = run(io.StringIO(), Clock(), steps=1000, seconds_per_step=0.01)
    assert text == (
        "epoch 1/2 | 1000 steps | loss 0.5000 val_loss 0.2500 | 3,200 examples/s | 10.0 s\n"
    )


def test_a_long_epoch_is_a_few_plain_lines():
    text = run(io.StringIO(), Clock(), steps=1000, seconds_per_step=10)
    assert 2 <= len(text.splitlines()) <= 5
    assert "\r" not in text
    assert "\x1b" not in text


def test_a_terminal_gets_a_bar_with_rate_and_eta():
    text = run(Terminal(), Clock(), steps=100, seconds_per_step=1)
    assert "[============............] 50/100" in text
    assert "32 examples/s | ETA 50.0 s" in text
    assert text.endswith("1 min 40 s\n")


def test_the_bar_of_a_piped_task_is_one_line_each_and_its_result_is_plain():
    out, clock = io.StringIO(), Clock()
    console = Console(out, examples_per_step=32, piped_to_terminal=True, clock=clock)
    console.begin_epoch(0, epochs=1, steps=4)
    for step in (2, 4):
        clock.now += 1
        console.update(step, {})
    console.end_epoch({"loss": 0.5})
    first, second, last = out.getvalue().split("\n")[:-1]
    assert first.startswith("\repoch 1/1 [============............] 2/4")
    assert second.startswith("\repoch 1/1 [========================] 4/4")
    assert last == "epoch 1/1 | 4 steps | loss 0.5000 | 64 examples/s | 2.0 s"


def test_resumed_epochs_count_only_their_own_steps():
    clock, out = Clock(), io.StringIO()
    console = Console(out, examples_per_step=10, clock=clock)
    console.begin_epoch(1, epochs=2, steps=100, done=90)
    clock.now += 1
    console.update(100, {})
    console.end_epoch({"loss": 1.0})
    assert "100 examples/s" in out.getvalue()


def test_silence():
    console = Console(None, examples_per_step=1)
    console.begin_epoch(0, epochs=1, steps=1)
    console.update(1, {"loss": 1.0})
    console.end_epoch({"loss": 1.0})
    console.line("x")
