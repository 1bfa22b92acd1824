"""Prepares a tfds data set once, however many processes ask for it.

    python -m input_pipeline.prepare tfds:digits/train digits ~/.cache/steadfast/data

Whoever holds the lock prepares, the others wait and then find it. The lock belongs to the
process: a preparer that is killed leaves it free, and tfds leaves nothing half-built
behind under the final name. What is wrong goes to stdout, one line, for the caller.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from typing import Any

from trainer.errors import OK, DataError, SteadfastError

_OWN = {
    "digits": "input_pipeline.datasets.digits.builder",
    "fashion_mnist": "input_pipeline.datasets.fashion_mnist.builder",
}


def make_builder(source: str, name: str, data_dir: str) -> Any:
    """Returns the tfds builder called `name`, the project's own first.

    Raises:
      DataError: there is no such data set, or it was prepared in another format.
    """
    import importlib

    import tensorflow_datasets as tfds
    from absl import logging

    # tfds warns of every directory that is not a finished data set; we say it better.
    logging.set_verbosity(logging.ERROR)
    try:
        if name in _OWN:
            module = importlib.import_module(_OWN[name])
            return module.Builder(data_dir=data_dir, file_format="array_record")
        return tfds.builder(name, data_dir=data_dir, file_format="array_record")
    except tfds.core.DatasetNotFoundError:
        own = ", ".join(_OWN)
        raise DataError(
            f"{source}: tfds has no data set {name!r}; this project adds {own}"
        ) from None
    except (ValueError, AssertionError) as error:  # what tfds raises for names and versions
        reason = str(error).strip().partition("\n")[0]
        if "File format is already set" in reason:
            reason = (
                f"it was prepared under {data_dir} in a format without random access; remove it "
                "or use another data.data_dir"
            )
        raise DataError(f"{source}: {reason}") from None


def prepare(source: str, name: str, data_dir: str) -> None:
    """Prepares the data set unless it is there; waits while another process does.

    Raises:
      DataError: the directory cannot be used, or what the data set is made of is missing.
    """
    if "://" in data_dir:
        raise DataError(
            f"{source}: it is not prepared under {data_dir}, and only one process may do that; "
            "prepare it in a local directory and copy it there"
        )
    target = make_builder(source, name, data_dir).data_path
    name_of_all_versions = "_".join(target.parent.relative_to(data_dir).parts)
    with _lock(source, data_dir, f".{name_of_all_versions}.lock"):
        builder = make_builder(source, name, data_dir)
        if builder.is_prepared():
            return
        for left_by_a_killed_process in target.parent.glob(f"incomplete.*_{target.name}"):
            left_by_a_killed_process.rmtree()
        print(f"{source}: preparing it under {data_dir}", file=sys.stderr, flush=True)
        try:
            builder.download_and_prepare()
        except OSError as error:  # a failed download, a full disk
            reason = " ".join(str(error).split())
            raise DataError(f"{source}: preparing it under {data_dir} failed: {reason}") from None


@contextlib.contextmanager
def _lock(source: str, data_dir: str, name: str) -> Iterator[None]:
    try:
        os.makedirs(data_dir, exist_ok=True)
        lock = os.open(os.path.join(data_dir, name), os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise DataError(f"{source}: data.data_dir={data_dir} cannot be used: {error}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{source}: another process prepares it, waiting", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m input_pipeline.prepare", description="Prepares a tfds data set once."
    )
    parser.add_argument("source", help="what the data set is called in messages")
    parser.add_argument("name", help="its name in tfds, with /config where it has several")
    parser.add_argument("data_dir", type=os.path.expanduser, help="where it is prepared")
    args = parser.parse_args(argv)

    from trainer import compat

    compat.import_tensorflow()
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    try:
        with open(os.devnull, "w") as devnull, contextlib.redirect_stdout(devnull):
            prepare(args.source, args.name, args.data_dir)
    except SteadfastError as error:
        print(error)
        return error.code
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
