"""Which files a pattern means, without those that are not data.

    files = data_files("tfrecord:/data/train-*", "/data/train-*")
"""

from __future__ import annotations

import os

import tensorflow as tf

from trainer.errors import DataError

# Markers, checksums and leftovers that other tools put beside data.
_NOT_DATA_STARTS = (".", "_")
_NOT_DATA_ENDS = (".crc", ".tmp", ".json", ".md")


def data_files(source: str, pattern: str) -> list[str]:
    """Returns the data files that match, sorted by name.

    A path that exists as it is written is taken as it is, also with [ ] in it; a
    directory means the files in it.

    Raises:
      DataError: none matches, or one is empty; names it.
    """
    if tf.io.gfile.isdir(pattern):
        matches = [os.path.join(pattern, name) for name in tf.io.gfile.listdir(pattern)]
    elif tf.io.gfile.exists(pattern):
        matches = [pattern]
    else:
        matches = tf.io.gfile.glob(pattern) or _glob_in_literal_directory(pattern)
    files = sorted(path for path in matches if _is_data(path))
    if not files:
        raise DataError(f"{source}: no data files match {pattern!r}; correct the path")
    empty = [path for path in files if tf.io.gfile.stat(path).length == 0]
    if empty:
        raise DataError(
            f"{source}: {empty[0]} is empty (0 bytes); remove it or write it again"
            + (f" ({len(empty)} such files)" if len(empty) > 1 else "")
        )
    return files


def _glob_in_literal_directory(pattern: str) -> list[str]:
    """Matches only the last part as a pattern: [ ] in a directory's name are letters."""
    directory, name = os.path.split(pattern)
    if not tf.io.gfile.isdir(directory):
        return []
    import fnmatch

    names = fnmatch.filter(tf.io.gfile.listdir(directory), name)
    return [os.path.join(directory, match) for match in names]


def _is_data(path: str) -> bool:
    name = os.path.basename(path.rstrip("/"))
    if name.startswith(_NOT_DATA_STARTS) or name.endswith(_NOT_DATA_ENDS):
        return False
    return ".incomplete" not in name and not tf.io.gfile.isdir(path)
