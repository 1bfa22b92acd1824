"""Checks that an exported version is undamaged and answers as the trained model did.

  python -m export.verify VERSION_DIR [--json]

Needs neither Keras code nor anything of the model's project: it loads the SavedModel as it
is, sends the golden requests stored beside it through `serving_default` at batch sizes 1,
5 and all, and compares with the stored answers of the trained model. Every file is checked
against the manifest first.

Exit codes: 0 the version is whole and answers alike; 2 it is damaged, or answers differently.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from trainer import errors

if TYPE_CHECKING:
    import numpy as np

    from export.golden import Golden

SIGNATURE = "serving_default"
BATCH_SIZES = (1, 5)


@dataclasses.dataclass(frozen=True)
class Report:
    """What was checked, and what came out."""

    path: str
    num_files: int
    signatures: dict[str, dict[str, dict[str, str]]]
    """signature -> `inputs` and `outputs` -> name -> dtype and shape."""
    num_requests: int
    batch_sizes: tuple[int, ...]
    max_difference: float
    """Largest |served - trained| / max(1, max |trained|) over all outputs."""
    tolerance: float
    seconds_to_load: float

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.batch_sizes))
        return (
            f"ok | {self.path} | {self.num_files} files | {self.num_requests} requests at batch "
            f"{sizes} | largest difference {self.max_difference:.2g} (allowed {self.tolerance:g})"
            f" | loaded in {self.seconds_to_load:.2f} s"
        )


def verify(version_dir: str) -> Report:
    """Checks one version, local or not.

    Raises:
      DataError: names the damaged file, or the output, request and batch size whose
        answer differs.
    """
    from export import golden, integrity

    version_dir = version_dir.rstrip("/")
    if "://" in version_dir:
        _tensorflow()
    num_files = integrity.check(version_dir)
    stored = golden.read(version_dir)
    tf = _tensorflow()
    start = time.perf_counter()
    try:
        loaded = tf.saved_model.load(version_dir)
        serve = loaded.signatures[SIGNATURE]
    except Exception as error:  # The loader raises nearly anything on a bad graph.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise errors.DataError(f"{version_dir}: does not load: {reason}") from None
    seconds_to_load = time.perf_counter() - start
    _require_names(version_dir, serve, stored)
    batch_sizes = tuple(dict.fromkeys((*BATCH_SIZES, stored.num_requests)))
    largest = 0.0
    for batch_size in batch_sizes:
        served = _answers(tf, version_dir, serve, stored, batch_size)
        for name, expected in stored.answers.items():
            where = f"{version_dir}: output {name!r} at batch size {batch_size}"
            largest = max(largest, _compare(where, served[name], expected, stored.tolerance))
    return Report(
        path=version_dir,
        num_files=num_files,
        signatures={name: _describe(f) for name, f in loaded.signatures.items()},
        num_requests=stored.num_requests,
        batch_sizes=batch_sizes,
        max_difference=largest,
        tolerance=stored.tolerance,
        seconds_to_load=round(seconds_to_load, 4),
    )


def _require_names(version_dir: str, serve: Any, stored: Golden) -> None:
    for kind, actual, expected in (
        ("inputs", serve.structured_input_signature[1], stored.requests),
        ("outputs", serve.structured_outputs, stored.answers),
    ):
        if set(actual) != set(expected):
            raise errors.DataError(
                f"{version_dir}: {SIGNATURE} has {kind} {sorted(actual)}, "
                f"the golden requests have {sorted(expected)}"
            )


def _answers(
    tf: Any, version_dir: str, serve: Any, stored: Golden, batch_size: int
) -> dict[str, np.ndarray]:
    """Returns the served answers to all golden requests, [N, …] each."""
    import numpy as np

    dtypes = {name: spec.dtype for name, spec in serve.structured_input_signature[1].items()}
    parts: dict[str, list[np.ndarray]] = {name: [] for name in stored.answers}
    for start in range(0, stored.num_requests, batch_size):
        batch = slice(start, start + batch_size)
        try:
            answers = serve(
                **{
                    name: tf.constant(values[batch], dtypes[name])
                    for name, values in stored.requests.items()
                }
            )
        except (tf.errors.OpError, TypeError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise errors.DataError(
                f"{version_dir}: {SIGNATURE} fails on golden requests {start} to "
                f"{min(start + batch_size, stored.num_requests) - 1}: {reason}"
            ) from None
        for name, value in answers.items():
            parts[name].append(value.numpy())
    return {name: np.concatenate(values) for name, values in parts.items()}


def _compare(where: str, served: np.ndarray, trained: np.ndarray, tolerance: float) -> float:
    """Returns the largest difference, relative to the largest answer but at least to 1.

    Raises:
      DataError: it is more than `tolerance`.
    """
    import numpy as np

    if served.shape != trained.shape:
        raise errors.DataError(
            f"{where}: shape {served.shape}, the trained model's {trained.shape}"
        )
    if trained.dtype.kind not in "fiub":
        differs = served != trained
        scale = 1.0
        differences = np.where(differs, np.inf, 0.0)
    else:
        exact, ours = trained.astype(np.float64), served.astype(np.float64)
        finite = np.abs(exact[np.isfinite(exact)])
        scale = max(1.0, float(finite.max())) if finite.size else 1.0
        same = (exact == ours) | (np.isnan(exact) & np.isnan(ours))
        with np.errstate(invalid="ignore"):
            differences = np.where(same, 0.0, np.abs(ours - exact))
        differences = np.where(np.isnan(differences), np.inf, differences)
    if not differences.size:
        return 0.0
    largest = float(differences.max()) / scale
    if largest > tolerance:
        index = np.unravel_index(int(differences.argmax()), differences.shape)
        raise errors.DataError(
            f"{where}: golden request {index[0]} is answered {served[index]!r}, the trained model "
            f"answered {trained[index]!r}; difference {largest:.3g}, allowed {tolerance:g}"
        )
    return largest


def _describe(function: Any) -> dict[str, dict[str, str]]:
    return {
        kind: {name: f"{spec.dtype.name}{_shape(spec.shape)}" for name, spec in specs.items()}
        for kind, specs in (
            ("inputs", function.structured_input_signature[1]),
            ("outputs", function.structured_outputs),
        )
    }


def _shape(shape: Any) -> str:
    if shape.rank is None:
        return "[…]"
    return "[" + ", ".join("None" if size is None else str(size) for size in shape) + "]"


def _tensorflow() -> Any:
    from trainer import compat

    return compat.import_tensorflow()


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m export.verify",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("version_dir", metavar="VERSION_DIR", help="such as BASE/7")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    args = parser.parse_args(argv[1:])
    try:
        report = verify(args.version_dir)
    except errors.SteadfastError as error:
        if args.json:
            print(json.dumps({"ok": False, "error": str(error)}))
        print(f"error: {error}", file=sys.stderr)
        return error.code
    print(json.dumps({"ok": True} | dataclasses.asdict(report)) if args.json else report)
    return errors.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv))
