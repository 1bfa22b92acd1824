"""Prepares a tfds data set once, however many processes ask for it.

    python -m input_pipeline.prepare tfds:digits/train digits ~/.cache/steadfast/data

Whoever holds the lock prepares, the others wait and then find it. The lock belongs to the
process: a preparer that is killed leaves it free, and tfds leaves nothing half-built
behind under the final name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from typing import Any

from trainer.errors import DataError, SteadfastError

_OWN = {
    "digits": "input_pipeline.datasets.digits.builder",
    "fashion_mnist": "input_pipeline.datasets.fashion_mnist.builder",
}


def make_builder(source: str, name: str, data_dir: str) -> Any:
    """Returns the tfds builder called `name`, the project's own first.

    Raises:
      DataError: there is no such data set.
    """
    import importlib

    import tensorflow_datasets as tfds
    from absl import logging

    # tfds warns of every directory that is not a finished data set; we say it better.
    logging.set_verbosity(logging.ERROR)
    if name in _OWN:
        module = importlib.import_module(_OWN[name])
        return module.Builder(data_dir=data_dir, file_format="array_record")
    try:
        return tfds.builder(name, data_dir=data_dir, file_format="array_record")
    except tfds.core.DatasetNotFoundError:
        own = ", ".join(_OWN)
        raise DataError(f"{source}: tfds has no data set {name!r}; this project adds {own}") from None


def prepare(source: str, name: str, data_dir: str) -> None:
    """Prepares the data set unless it is there; waits while another process does."""
    os.makedirs(data_dir, exist_ok=True)
    with open(os.path.join(data_dir, f".{name.replace('/', '_')}.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{source}: another process prepares it, waiting", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        builder = make_builder(source, name, data_dir)
        if builder.is_prepared():
            return
        print(f"{source}: preparing it under {data_dir}", file=sys.stderr, flush=True)
        builder.download_and_prepare()


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code."""
    source, name, data_dir = argv[1:]
    from trainer import compat

    compat.import_tensorflow()
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    try:
        with open(os.devnull, "w") as devnull, contextlib.redirect_stdout(devnull):
            prepare(source, name, data_dir)
    except SteadfastError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
