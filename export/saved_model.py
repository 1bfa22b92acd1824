"""From a trained model to a published, checked version that TF Serving loads.

  python -m export.saved_model RUN_DIR [--dir=BASE] [--json]

exports a finished run again. From Python:

    result = export(model, config.export, preprocess=…, raw_spec=…, golden=…, metrics=…)

Gate -> staging directory -> golden requests with the trained model's answers -> manifest ->
check in a fresh process -> one rename to the next integer -> old versions pruned. Whatever
fails, and wherever the process is killed, no integer directory appears that is not whole.

Exit codes: 0 published, 1 the served model answers differently, 2 configuration or data is
wrong, 3 the quality gate refused the model.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainer import errors

if TYPE_CHECKING:
    import keras
    import numpy as np
    import tensorflow as tf

    from export.config import ExportConfig
    from input_pipeline.sources.base import Source
    from trainer.config import Experiment

# One rounding of a number near 1 in these formats. Layers round to them, and which way
# depends on kernels that TensorFlow fuses, so a smaller tolerance compares rounding, not models.
_LEAST_TOLERANCE = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
_GOLDEN_REQUESTS = 32
_GOLDEN_BATCH = 32


@dataclasses.dataclass(frozen=True)
class ExportResult:
    """A published version."""

    version: int
    path: str
    max_difference: float
    """Largest |served - trained| / max(1, max |trained|) over the golden requests."""


def export(
    model: keras.Model,
    config: ExportConfig,
    *,
    preprocess: Callable[[dict[str, tf.Tensor]], Any] | None,
    raw_spec: dict[str, tf.TensorSpec],
    golden: dict[str, np.ndarray],
    metrics: dict[str, float],
    version: int | None = None,
) -> ExportResult:
    """Publishes `model` below `config.dir`; call it on the chief only, with no peers.

    Args:
      model: built and trained; under any strategy.
      config: base path, gate, tolerance and number of versions kept.
      preprocess: graph code, one example's features -> model input; None: see
        `input_pipeline.model_input`.
      raw_spec: feature name -> shape and dtype of one example.
      golden: feature name -> values of some validation examples, [N, …], N at least 1.
      metrics: final validation metrics, as the gate names them.
      version: number to publish as; None: the next one.

    Raises:
      GateRefused: a threshold is not met; nothing is published.
      ConfigError: the base path is not set, or `version` exists already.
      SteadfastError: the served model answers differently; nothing is published.
    """
    from export import files, integrity, versions
    from export import golden as golden_files
    from export.config import failed_thresholds

    if not config.dir:
        raise errors.ConfigError(
            "export.dir is not set: name the model's base path, such as models/NAME"
        )
    if failed := failed_thresholds(config.gate, metrics):
        raise errors.GateRefused(f"export.gate refused the model: {'; '.join(failed)}")
    _require_golden(golden, raw_spec)
    base = os.path.expanduser(config.dir).rstrip("/") or "/"
    versions.sweep(base)
    staging = versions.stage(base)
    try:
        dtype = _save(model, preprocess, raw_spec, staging)
        golden_files.write(staging, _golden(model, preprocess, raw_spec, golden, config, dtype))
        integrity.seal(staging)
        report = _verify_in_fresh_process(staging)
        version = versions.publish(staging, base, version)
    finally:
        files.remove_tree(staging)
    versions.prune(base, keep=config.keep, protect=version)
    return ExportResult(version, f"{base}/{version}", report["max_difference"])


def _require_golden(golden: dict[str, np.ndarray], raw_spec: dict[str, tf.TensorSpec]) -> None:
    sizes = {name: len(values) for name, values in golden.items()}
    if set(sizes) != set(raw_spec) or len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise errors.DataError(
            f"golden requests have {sizes or 'no features'}, needed is one or more examples of "
            f"{', '.join(sorted(raw_spec))}: check that data.validation is not empty"
        )


def _save(
    model: keras.Model,
    preprocess: Callable[..., Any] | None,
    raw_spec: dict[str, tf.TensorSpec],
    path: str,
) -> str | None:
    """Writes the SavedModel; returns the low precision it computes in, or None."""
    import tensorflow as tf

    from export import signatures

    module = signatures.build(model, preprocess, raw_spec)
    tf.saved_model.save(module, path, signatures=module.functions)
    dtype = signatures.low_precision(module)
    return dtype.name if dtype else None


def _golden(
    model: keras.Model,
    preprocess: Callable[..., Any] | None,
    raw_spec: dict[str, tf.TensorSpec],
    golden: dict[str, np.ndarray],
    config: ExportConfig,
    dtype: str | None,
) -> Any:
    """Returns the golden requests with the trained model's answers to pipeline output."""
    import numpy as np
    import tensorflow as tf

    from export import signatures
    from export.golden import Golden, as_bytes
    from input_pipeline.model_input import model_input

    examples = {
        name: tf.constant(as_bytes(np.asarray(values)), raw_spec[name].dtype)
        for name, values in golden.items()
    }
    dataset = tf.data.Dataset.from_tensor_slices(examples)
    dataset = dataset.map(model_input if preprocess is None else preprocess)

    # As a graph, which is how the model is evaluated: op by op it rounds differently.
    @tf.function(reduce_retracing=True)
    def answer(inputs: Any) -> dict[str, tf.Tensor]:
        return signatures.named_outputs(model, model(inputs, training=False))

    parts: dict[str, list[np.ndarray]] = {}
    for batch in dataset.batch(_GOLDEN_BATCH):
        for name, value in answer(batch).items():
            parts.setdefault(name, []).append(value.numpy())
    return Golden(
        requests={signatures.signature_name(n): v.numpy() for n, v in examples.items()},
        answers={name: np.concatenate(values) for name, values in parts.items()},
        tolerance=max(config.tolerance, _LEAST_TOLERANCE.get(dtype or "", 0.0)),
    )


def _verify_in_fresh_process(staging: str) -> dict[str, Any]:
    """Runs `export.verify` where nothing of this process is left; returns its report.

    Raises:
      SteadfastError: it found a difference, or failed.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # Last on the path: PYTHONPATH would put an installation's directory before Python's own.
    code = (
        f"import sys; sys.path.append({root!r}); "
        "from export.verify import main; sys.exit(main(sys.argv))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    # This process may hold most of an accelerator's memory.
    environment["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    done = subprocess.run(
        [sys.executable, "-c", code, staging, "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        report = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise errors.SteadfastError(
            f"the check of the exported model ended with {done.returncode}: {last}; "
            "nothing was published"
        ) from None
    if not report["ok"]:
        raise errors.SteadfastError(f"nothing was published: {report['error']}")
    return report


def export_trained(
    model: keras.Model, config: Experiment, source: Source, metrics: dict[str, float]
) -> ExportResult:
    """Exports the model of a run.

    Args:
      model: built and trained.
      config: of the run; `export`, and `data` for what happens to raw features.
      source: validation data, or training data where there is none.
      metrics: final metrics, as the gate names them.
    """
    from input_pipeline import pipeline
    from trainer import user_code

    preprocess = None
    if config.data.preprocess:
        preprocess = user_code.load(config.data.preprocess, field="data.preprocess")
    return export(
        model,
        config.export,
        preprocess=preprocess,
        raw_spec=pipeline.raw_spec(source, config.data),
        golden=pipeline.raw_examples(source, config.data, _GOLDEN_REQUESTS),
        metrics=metrics,
    )


def export_run(run_dir: str, base: str | None = None) -> ExportResult:
    """Exports the model of a finished run again.

    Args:
      run_dir: the run's directory.
      base: base path to publish below; None: the run's `export.dir`.
    """
    from trainer import outcome

    trained = outcome.load_trained(run_dir)
    if base:
        trained.config.export.dir = base
    return export_trained(trained.model, trained.config, trained.source, trained.metrics)


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m export.saved_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of a finished run")
    parser.add_argument(
        "--dir", metavar="BASE", help="publish below BASE, not the run's export.dir"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    args = parser.parse_args(argv[1:])
    try:
        if not os.path.isdir(args.run_dir) and "://" not in args.run_dir:
            raise errors.ConfigError(f"{args.run_dir}: no such directory; name a run's --run_dir")
        from trainer import compat

        compat.import_tensorflow()
        result = export_run(args.run_dir, args.dir)
    except errors.SteadfastError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    if args.json:
        print(json.dumps(dataclasses.asdict(result)))
    else:
        print(
            f"exported | version {result.version} | {result.path} | largest difference to the "
            f"trained model {result.max_difference:.1e}"
        )
    return errors.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv))
