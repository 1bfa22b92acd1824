"""Version directories below a base path: `BASE/1`, `BASE/2`, …, each whole or not there.

    sweep(base)
    staging = stage(base)          # fill it
    version = publish(staging, base)
    prune(base, keep=5, protect=version)

TF Serving loads an integer directory the moment it appears, so a version is filled under
a hidden name and appears by one rename, and disappears by one rename before its files are
deleted. On an object store, where a rename copies file by file, the version is staged on
a local disk and copied, `saved_model.pb` last. Needs no TensorFlow for local paths.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator

from export import files
from trainer.errors import ConfigError

_STALE_AFTER_S = 3600.0
_STAGING = re.compile(r"\.staging-(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]+")
_TRASH = ".trash-"
_GRAPH = "saved_model.pb"


def list_versions(base: str) -> list[int]:
    """Returns the versions below `base`, oldest first; none if it does not exist."""
    return sorted({int(n) for n in files.list_names(base) if n.isascii() and n.isdigit()})


def stage(base: str) -> str:
    """Creates an empty, hidden directory for a version to be filled in; returns its path."""
    name = f".staging-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    if files.is_local(base):
        files.make_dirs(base)
        # Not tempfile.mkdtemp: nobody but the owner could read the published version.
        path = files.join(base, name)
        os.mkdir(path)
        return path
    return tempfile.mkdtemp(prefix=name.lstrip("."))


def publish(staging: str, base: str, version: int | None = None) -> int:
    """Makes a filled staging directory a version of `base`; returns its number.

    An existing version is never replaced: another publisher's number is skipped.

    Args:
      staging: what `stage(base)` returned; gone afterwards.
      base: the model's base path.
      version: the number to use; None: the next one.

    Raises:
      ConfigError: `version` exists already.
    """
    if version is not None and version < 0:
        raise ConfigError(f"version={version}: must not be negative")
    if not files.is_local(base):
        number = _next(base, version)
        _copy(staging, files.join(base, str(number)))
        files.remove_tree(staging)
        return number
    files.sync_tree(staging)
    with _lock(base):
        while True:
            number = _next(base, version)
            try:
                os.rename(staging, files.join(base, str(number)))
            except OSError as error:
                # Only where locks do not work, such as on some network file systems:
                # another publisher was faster, and the next round sees its version.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
                continue
            _sync(base)
            return number


def prune(base: str, *, keep: int, protect: int) -> list[int]:
    """Deletes all but the newest `keep` versions (0: none); returns the deleted ones.

    The newest version, and `protect`, always stay.
    """
    deleted = []
    with _lock(base):
        versions = list_versions(base)
        doomed = [v for v in versions[: max(0, len(versions) - max(keep, 1))] if v != protect]
        for version in doomed if keep else ():
            path = files.join(base, str(version))
            if files.is_local(base):
                hidden = files.join(base, f"{_TRASH}{version}-{secrets.token_hex(4)}")
                try:
                    os.rename(path, hidden)
                except FileNotFoundError:
                    continue
                path = hidden
            files.remove_tree(path)
            deleted.append(version)
    return deleted


def sweep(base: str) -> list[str]:
    """Deletes what killed publishers left below a local `base`; returns the names.

    That is the rest of a deletion, and a staging directory whose process on this host is
    dead, or that nobody wrote to for an hour.
    """
    swept = []
    for name in files.list_names(base) if files.is_local(base) else ():
        path = files.join(base, name)
        if name.startswith(_TRASH) or _is_stale(path, _STAGING.fullmatch(name)):
            files.remove_tree(path)
            swept.append(name)
    return swept


def _is_stale(path: str, match: re.Match[str] | None) -> bool:
    if match is None:
        return False
    if match["host"] == socket.gethostname():
        pid = int(match["pid"])
        if pid == os.getpid():
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
    times = []
    for inner in [path, *(files.join(path, name) for name in files.walk(path))]:
        with contextlib.suppress(FileNotFoundError):  # Published or swept meanwhile.
            times.append(os.stat(inner).st_mtime)
    return bool(times) and time.time() - max(times) > _STALE_AFTER_S


def _next(base: str, version: int | None) -> int:
    versions = list_versions(base)
    if version is None:
        return versions[-1] + 1 if versions else 1
    if version in versions:
        raise ConfigError(
            f"{files.join(base, str(version))}: exists already and is never replaced; "
            "leave the version out to get the next one"
        )
    return version


def _copy(source: str, target: str) -> None:
    names = sorted(files.walk(source), key=lambda name: name == _GRAPH)
    for name in names:
        files.make_dirs(files.join(target, os.path.dirname(name)))
        files.copy(files.join(source, name), files.join(target, name))


@contextlib.contextmanager
def _lock(base: str) -> Iterator[None]:
    """Lets one process or thread at a time number and delete versions of a local `base`.

    Without it a slow publisher could take a number that others had used and pruned
    meanwhile, and be older than the newest. The lock is on the directory itself, so
    nothing is left behind, and a killed holder frees it.
    """
    if not files.is_local(base):
        yield
        return
    descriptor = os.open(base, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # No locks there: the rename is still atomic.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
