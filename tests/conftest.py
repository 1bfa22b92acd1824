"""Helpers that several tests share: a free port, and commands in their own process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.addresses import free_ports

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Returns a function that returns a TCP port of 127.0.0.1 that is free now."""
    return lambda: free_ports(1)[0]


@pytest.fixture
def child_env() -> Callable[..., dict[str, str]]:
    """Returns a function that builds a child's environment: no cluster, no noise, our code."""

    def build(**changes: str) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
        path = [str(ROOT), *filter(None, [env.get("PYTHONPATH")])]
        env |= {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(path)}
        return env | changes

    return build


@pytest.fixture
def python(
    child_env: Callable[..., dict[str, str]], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Returns a function that runs `python ARGS...` to its end.

    Keyword arguments: `env`, changes of the environment; `cwd`, by default an empty
    directory; `timeout_s`, 120 by default.
    """

    def run(
        *args: str,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *args],
            env=child_env(**(env or {})),
            cwd=cwd or tmp_path,
            timeout=timeout_s,
            text=True,
            capture_output=True,
            check=False,
        )

    return run
