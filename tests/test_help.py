"""Every command answers --help at once: on standard output, without TensorFlow."""

import pytest

COMMANDS = (
    "trainer.task",
    "trainer.launch",
    "input_pipeline.prepare",
    "export.saved_model",
    "export.verify",
)
PROGRAM = """
import runpy, sys
sys.argv = [sys.argv[1], "--help"]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except SystemExit as end:
    assert not end.code, end.code
heavy = {"tensorflow", "keras", "numpy"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_imports_nothing_heavy(python, command):
    done = python("-c", PROGRAM, command)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 3
    assert done.stderr == ""
