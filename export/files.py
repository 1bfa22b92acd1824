"""File operations on local paths through `os`, on others (`gs://…`) through TensorFlow.

    data = read_bytes(join(version_dir, "saved_model.pb"))
    for relative in walk(version_dir): …

Local paths do not need TensorFlow, and get what only `os` offers: an atomic rename that
never replaces a version, and fsync.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import shutil
from collections.abc import Iterator
from typing import Any

from trainer.errors import DataError

_CHUNK = 1 << 20


def is_local(path: str) -> bool:
    """Tells whether `path` is on a mounted file system."""
    return "://" not in path


def join(base: str, *parts: str) -> str:
    """Joins with `/`."""
    return posixpath.join(base, *parts)


def make_dirs(path: str) -> None:
    """Creates `path` and its parents where missing."""
    if is_local(path):
        os.makedirs(path, exist_ok=True)
    else:
        _gfile().makedirs(path)


def exists(path: str) -> bool:
    """Tells whether there is something at `path`."""
    return os.path.exists(path) if is_local(path) else _gfile().exists(path)


def list_names(path: str) -> list[str]:
    """Returns the names in directory `path`, sorted; none if it does not exist."""
    if is_local(path):
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []
    if not _gfile().exists(path):
        return []
    # Object stores list a directory as `name/`.
    return sorted({name.rstrip("/") for name in _gfile().listdir(path)} - {""})


def walk(path: str) -> Iterator[str]:
    """Yields the path of every file below directory `path`, relative to it, sorted."""
    steps = os.walk(path) if is_local(path) else _gfile().walk(path)
    found = []
    for directory, _, names in steps:
        inner = directory.rstrip("/")[len(path.rstrip("/")) :].lstrip("/")
        found += [join(inner, name) if inner else name for name in names]
    yield from sorted(found)


def read_bytes(path: str) -> bytes:
    """Returns the content of a file.

    Raises:
      DataError: it is missing or cannot be read.
    """
    return b"".join(_chunks(path))


def write_bytes(path: str, data: bytes) -> None:
    """Writes a new file, or replaces its content."""
    with open(path, "wb") if is_local(path) else _gfile().GFile(path, "wb") as file:
        file.write(data)


def sha256(path: str) -> str:
    """Returns the SHA-256 of a file's content, in hexadecimal.

    Raises:
      DataError: it is missing or cannot be read.
    """
    digest = hashlib.sha256()
    for chunk in _chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def copy(source: str, target: str) -> None:
    """Copies a file between any two file systems."""
    _gfile().copy(source, target, overwrite=True)


def remove_tree(path: str) -> None:
    """Deletes a directory; one that is gone, or that another process deletes too, is fine."""
    if is_local(path):
        shutil.rmtree(path, ignore_errors=True)
    elif _gfile().exists(path):
        _gfile().rmtree(path)


def sync_tree(path: str) -> None:
    """Flushes every file and directory of a local tree to the disk."""
    for directory, _, names in os.walk(path):
        for name in [*names, ""]:
            descriptor = os.open(os.path.join(directory, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _chunks(path: str) -> Iterator[bytes]:
    if is_local(path):
        try:
            with open(path, "rb") as file:
                while chunk := file.read(_CHUNK):
                    yield chunk
        except OSError as error:
            raise DataError(f"{path}: {_reason(error)}") from None
        return
    from tensorflow import errors

    try:
        with _gfile().GFile(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except errors.OpError as error:
        raise DataError(f"{path}: {error.message.splitlines()[0]}") from None


def _reason(error: OSError) -> str:
    return "missing" if isinstance(error, FileNotFoundError) else error.strerror or str(error)


def _gfile() -> Any:
    from tensorflow import io

    return io.gfile
