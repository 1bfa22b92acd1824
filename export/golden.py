"""Golden requests and the trained model's answers to them, stored beside the served model.

    write(version_dir, Golden(requests, answers, tolerance=1e-5))
    golden = read(version_dir)

`assets.extra/golden.npz` holds the arrays and `assets.extra/golden.json` their names and
the tolerance. Strings are stored as one array of bytes and one of ends, because numpy's
own would need pickle, or would cut trailing zero bytes. Needs numpy only.
"""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import numpy as np

from export import files
from trainer.errors import DataError

ARRAYS = "assets.extra/golden.npz"
INDEX = "assets.extra/golden.json"


@dataclasses.dataclass(frozen=True)
class Golden:
    """Requests by feature name and answers by output name, [N, …] each, N the same."""

    requests: dict[str, np.ndarray]
    answers: dict[str, np.ndarray]
    tolerance: float

    @property
    def num_requests(self) -> int:
        return len(next(iter(self.requests.values())))


def write(version_dir: str, golden: Golden) -> None:
    """Stores `golden` below `version_dir`."""
    arrays: dict[str, np.ndarray] = {}
    for kind in ("requests", "answers"):
        for name, values in getattr(golden, kind).items():
            arrays |= _encode(f"{kind}/{name}", values)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)  # type: ignore[arg-type]
    index = {
        "requests": sorted(golden.requests),
        "answers": sorted(golden.answers),
        "num_requests": golden.num_requests,
        "tolerance": golden.tolerance,
    }
    files.make_dirs(files.join(version_dir, "assets.extra"))
    files.write_bytes(files.join(version_dir, ARRAYS), buffer.getvalue())
    files.write_bytes(files.join(version_dir, INDEX), (json.dumps(index, indent=2) + "\n").encode())


def read(version_dir: str) -> Golden:
    """Returns what `write` stored.

    Raises:
      DataError: names the file that is missing or does not hold it.
    """
    index_path, arrays_path = (files.join(version_dir, name) for name in (INDEX, ARRAYS))
    try:
        index = json.loads(files.read_bytes(index_path))
        names = {kind: [str(name) for name in index[kind]] for kind in ("requests", "answers")}
        tolerance = float(index["tolerance"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{index_path}: not an index of golden requests ({error})") from None
    data = files.read_bytes(arrays_path)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            decoded = {
                kind: {name: _decode(arrays, f"{kind}/{name}") for name in names[kind]}
                for kind in names
            }
    # numpy raises whatever zipfile, zlib or its own parser meet in a damaged file.
    except Exception as error:
        raise DataError(f"{arrays_path}: does not hold the golden requests ({error})") from None
    return Golden(decoded["requests"], decoded["answers"], tolerance)


def as_bytes(values: np.ndarray) -> np.ndarray:
    """Returns strings of any numpy kind as an object array of bytes, others unchanged."""
    if values.dtype.kind not in "OSU":
        return values
    flat = [value.encode() if isinstance(value, str) else bytes(value) for value in values.flat]
    result = np.empty(len(flat), object)
    result[:] = flat
    return result.reshape(values.shape)


def _encode(key: str, values: np.ndarray) -> dict[str, np.ndarray]:
    values = as_bytes(np.asarray(values))
    if values.dtype.kind != "O":
        return {key: values}
    ends = np.cumsum([len(value) for value in values.flat], dtype=np.int64).reshape(values.shape)
    return {
        key + "#bytes": np.frombuffer(b"".join(values.flat), np.uint8),
        key + "#ends": ends,
    }


def _decode(arrays: Any, key: str) -> np.ndarray:
    if key in arrays:
        return arrays[key]
    data, ends = arrays[key + "#bytes"].tobytes(), arrays[key + "#ends"]
    result = np.empty(ends.size, object)
    result[:] = [
        data[start:end] for start, end in zip([0, *ends.flat][:-1], ends.flat, strict=True)
    ]
    return result.reshape(ends.shape)
