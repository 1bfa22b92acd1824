"""Generations on disk: each is committed whole or not at all.

    generations = Generations("RUN_DIR/backup", keep=2)
    generations.write({"dense/kernel": array}, {"step": 100})
    generation = generations.newest()        # None, or the newest whole one

    backup/
      000000000100/           a generation, named by its step
        arrays.index  arrays.data-00000-of-00001      TensorFlow's tensor bundle
        state.json            everything that is not an array
        MANIFEST.json         SHA-256 and size of each file; written last, inside a
                              hidden directory that one rename then makes visible

Only the chief writes. What a kill leaves behind is hidden and swept by the next write.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

_NAME = re.compile(r"^\d{12}$")
_MANIFEST = "MANIFEST.json"
_STATE = "state.json"
_ARRAYS = "arrays"


@dataclasses.dataclass(frozen=True)
class Generation:
    """One committed state of a run."""

    step: int
    arrays: dict[str, np.ndarray]
    state: dict[str, Any]


class Generations:
    """The generations under one directory, local or anything `tf.io.gfile` reaches."""

    def __init__(self, directory: str, *, keep: int = 2):
        self._directory = directory
        self._keep = keep

    def steps(self) -> list[int]:
        """Returns the steps of the generations that are there, oldest first."""
        if not tf.io.gfile.isdir(self._directory):
            return []
        names = (name.rstrip("/") for name in tf.io.gfile.listdir(self._directory))
        return sorted(int(name) for name in names if _NAME.match(name))

    def write(self, arrays: dict[str, np.ndarray], state: dict[str, Any]) -> str:
        """Commits a generation; `state["step"]` names it. Returns its path.

        A generation of the same step is replaced: it holds the same state, or is damaged.
        """
        step = state["step"]
        final = self._path(step)
        staging = f"{self._directory}/.{step:012d}"
        if tf.io.gfile.exists(staging):
            tf.io.gfile.rmtree(staging)
        tf.io.gfile.makedirs(staging)
        names = sorted(arrays)
        tf.raw_ops.SaveV2(
            prefix=f"{staging}/{_ARRAYS}",
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.constant(arrays[name]) for name in names],
        )
        _write_text(f"{staging}/{_STATE}", json.dumps(state))
        files = {name: _sha256(f"{staging}/{name}") for name in tf.io.gfile.listdir(staging)}
        _write_text(f"{staging}/{_MANIFEST}", json.dumps({"files": files}, indent=1))
        if tf.io.gfile.exists(final):
            tf.io.gfile.rmtree(final)
        tf.io.gfile.rename(staging, final)
        self._sweep()
        return final

    def newest(self) -> Generation | None:
        """Reads the newest whole generation; warns of each newer one that is damaged."""
        for step in reversed(self.steps()):
            try:
                return self._read(step)
            except (OSError, ValueError, KeyError, tf.errors.OpError) as error:
                reason = " ".join(str(error).split())
                logging.warning(
                    "backup %s is damaged, trying an older one: %s", self._path(step), reason
                )
        return None

    def delete(self) -> None:
        """Removes all generations."""
        if tf.io.gfile.isdir(self._directory):
            tf.io.gfile.rmtree(self._directory)

    def _read(self, step: int) -> Generation:
        path = self._path(step)
        manifest = json.loads(_read_text(f"{path}/{_MANIFEST}"))
        for name, digest in manifest["files"].items():
            if _sha256(f"{path}/{name}") != digest:
                raise ValueError(f"{name} does not match its checksum in {_MANIFEST}")
        reader = tf.train.load_checkpoint(f"{path}/{_ARRAYS}")
        arrays = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
        return Generation(step, arrays, json.loads(_read_text(f"{path}/{_STATE}")))

    def _sweep(self) -> None:
        for step in self.steps()[: -self._keep]:
            tf.io.gfile.rmtree(self._path(step))
        for name in tf.io.gfile.listdir(self._directory):
            if name.startswith("."):
                tf.io.gfile.rmtree(f"{self._directory}/{name}")

    def _path(self, step: int) -> str:
        return f"{self._directory}/{step:012d}"


def _read_text(path: str) -> str:
    with tf.io.gfile.GFile(path) as file:
        return file.read()


def _write_text(path: str, text: str) -> None:
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(text)


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(2**22):
            digest.update(chunk)
    return digest.hexdigest()
