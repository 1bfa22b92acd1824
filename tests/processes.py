"""Clusters of real processes on this machine, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.addresses import free_ports

ROOT = Path(__file__).resolve().parent.parent


def tf_config(ports: Sequence[int], index: int) -> str:
    """Returns TF_CONFIG of worker `index` of the workers at `ports`."""
    workers = [f"127.0.0.1:{port}" for port in ports]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})


def start(
    args: Sequence[str], *, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """Starts `python ARGS…` with this checkout importable; output is one stream."""
    changed = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"} | (env or {})
    changed["PYTHONPATH"] = os.pathsep.join([str(ROOT), changed.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, *args],
        cwd=cwd,
        env=changed,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def start_cluster(
    commands: Sequence[Sequence[str]], *, cwd: Path, env: dict[str, str] | None = None
) -> list[subprocess.Popen[str]]:
    """Starts one worker per command; without a cluster if there is only one."""
    ports = free_ports(len(commands))
    return [
        start(
            command,
            cwd=cwd,
            env={**(env or {}), "TF_CONFIG": tf_config(ports, i) if len(commands) > 1 else ""},
        )
        for i, command in enumerate(commands)
    ]


def finish(processes: Sequence[subprocess.Popen[str]], *, timeout_s: float = 180) -> list[str]:
    """Waits for all processes and returns what each printed; none is left behind."""
    try:
        return [process.communicate(timeout=timeout_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_cluster(commands: Sequence[Sequence[str]], *, cwd: Path, **options: dict) -> list[str]:
    """Runs a cluster to its end, checks that every worker exits 0, returns the outputs."""
    processes = start_cluster(commands, cwd=cwd, **options)
    outputs = finish(processes)
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return outputs
