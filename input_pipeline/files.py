"""Which files a pattern means, without those that are not data.

files = data_files("tfrecord:/data/train-*", "/data/train-*")
"""

from __future__ import annotations

import glob
import os

import tensorflow as tf

from trainer.errors import DataError

# Markers, checksums and leftovers that other tools put beside data.
_NOT_DATA_STARTS = (".", "_")
_NOT_DATA_ENDS = (".crc", ".tmp", ".json", ".md")


def data_files(source: str, pattern: str) -> list[str]:
    """Returns the data files that match, sorted by name.

    A file that exists as it is written is taken as it is; a directory means the files in
    it. [ ] in the name of a directory that exists are letters.

    Raises:
      DataError: none matches, one is empty, or they cannot be reached; names it.
    """
    try:
        files = _matches(os.path.expanduser(pattern))
        empty = [path for path in files if tf.io.gfile.stat(path).length == 0]
    except tf.errors.OpError as error:
        raise DataError(f"{source}: {' '.join(error.message.split())}") from None
    if not files:
        raise DataError(f"{source}: no data files match {pattern!r}; correct the path")
    if empty:
        raise DataError(
            f"{source}: {empty[0]} is empty (0 bytes); remove it or write it again"
            + (f" ({len(empty)} such files)" if len(empty) > 1 else "")
        )
    return files


def _matches(pattern: str) -> list[str]:
    if tf.io.gfile.isdir(pattern):
        paths = [os.path.join(pattern, name) for name in tf.io.gfile.listdir(pattern)]
    elif tf.io.gfile.exists(pattern):
        return [pattern]
    else:
        paths = tf.io.gfile.glob(_with_literal_directory(pattern))
    return sorted(path for path in paths if _is_data(path))


def _with_literal_directory(pattern: str) -> str:
    """Escapes what is special to `glob` in the part of the pattern that is a directory."""
    directory = os.path.dirname(pattern)
    while directory != os.path.dirname(directory) and not tf.io.gfile.isdir(directory):
        directory = os.path.dirname(directory)
    return glob.escape(directory) + pattern[len(directory) :]


def _is_data(path: str) -> bool:
    name = os.path.basename(path.rstrip("/"))
    if name.startswith(_NOT_DATA_STARTS) or name.endswith(_NOT_DATA_ENDS):
        return False
    return ".incomplete" not in name and not tf.io.gfile.isdir(path)
