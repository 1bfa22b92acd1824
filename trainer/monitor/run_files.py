"""The files of a run that its chief writes while it goes on.

    files = RunFiles(run_dir, active=cluster.is_chief)
    files.event("restored", step=100)
    files.metrics({"step": 150, "loss": 0.3})
    files.write("summary.json", {...})

On the other workers every call does nothing: shared paths have one writer.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import tensorflow as tf

METRICS = "metrics.jsonl"
EVENTS = "events.jsonl"
SUMMARY = "summary.json"
CONFIG = "config.json"


class RunFiles:
    """Writes below `run_dir`, local or anything `tf.io.gfile` reaches."""

    def __init__(self, run_dir: str, *, active: bool):
        self._run_dir = run_dir
        self._active = active
        if active:
            tf.io.gfile.makedirs(run_dir)

    def metrics(self, line: dict[str, Any]) -> None:
        """Appends a line to metrics.jsonl."""
        self._append(METRICS, line)

    def event(self, name: str, *, step: int, **details: Any) -> None:
        """Appends a line to events.jsonl; `time` is in seconds since the epoch of Unix."""
        self._append(EVENTS, {"event": name, "time": time.time(), "step": step, **details})

    def write(self, name: str, content: Any) -> None:
        """Writes a whole file (JSON, or text as it is), visible only when complete."""
        if not self._active:
            return
        text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
        path = os.path.join(self._run_dir, name)
        with tf.io.gfile.GFile(f"{path}.tmp", "w") as file:
            file.write(text)
        tf.io.gfile.rename(f"{path}.tmp", path, overwrite=True)

    def drop_metrics_after(self, step: int) -> int:
        """Removes lines of steps that will be run again; returns the newest step removed.

        Half a line, left by a kill, goes too. Returns `step` where nothing was removed.
        """
        if not self._active:
            return step
        lines = read_lines(self._run_dir, METRICS)
        kept = [line for line in lines if line["step"] <= step]
        path = os.path.join(self._run_dir, METRICS)
        if tf.io.gfile.exists(path):
            self.write(METRICS, "".join(json.dumps(line) + "\n" for line in kept))
        return max((line["step"] for line in lines), default=step)

    def _append(self, name: str, line: dict[str, Any]) -> None:
        if not self._active:
            return
        with tf.io.gfile.GFile(os.path.join(self._run_dir, name), "a") as file:
            file.write(json.dumps(line) + "\n")


def read_json(run_dir: str, name: str) -> dict[str, Any] | None:
    """Returns the content of a JSON file of the run, or None if it is not there."""
    path = os.path.join(run_dir, name)
    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path) as file:
        return json.loads(file.read())


def read_lines(run_dir: str, name: str) -> list[dict[str, Any]]:
    """Returns the whole lines of a .jsonl file of the run; none if it is not there."""
    path = os.path.join(run_dir, name)
    if not tf.io.gfile.exists(path):
        return []
    with tf.io.gfile.GFile(path) as file:
        text = file.read()
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            continue  # A kill in the middle of an append leaves half a line.
    return lines
