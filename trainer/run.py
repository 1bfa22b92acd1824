"""A whole run of one task, as a story: cluster, data, model, loop, export, summary.

    code = run(config, cluster, "runs/digits")

Every worker runs the same story; the chief alone writes and exports.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
import zlib
from typing import Any

import numpy as np

from trainer import compat, errors
from trainer.cluster import Cluster
from trainer.config import Experiment

compat.import_tensorflow()

import tensorflow as tf  # noqa: E402

from export import saved_model  # noqa: E402
from input_pipeline import pipeline  # noqa: E402
from input_pipeline.order import Epochs  # noqa: E402
from trainer import callbacks, interruption, model_builder, replica_step  # noqa: E402
from trainer import strategy as strategies  # noqa: E402
from trainer.backup import restore_variables, weights_sha256  # noqa: E402
from trainer.generations import Generations  # noqa: E402
from trainer.loop import Loop  # noqa: E402
from trainer.monitor import run_files  # noqa: E402
from trainer.monitor.console import Console  # noqa: E402


def run(config: Experiment, cluster: Cluster, run_dir: str) -> int:
    """Trains to the end, exports, and returns the exit code, the same on every worker."""
    started = time.time()
    if _done_before(config, run_dir):
        return _finish_again(config, cluster, run_dir)

    # Mistakes end here, before any peer is waited for.
    num_examples = pipeline.preflight(config.data, config.data.train)
    if config.data.validation:
        pipeline.preflight(config.data, config.data.validation)
    if num_examples is not None:
        Epochs(num_examples, config.train.global_batch_size)
    pipeline.per_replica_batch(config.train.global_batch_size, cluster.num_workers)

    strategy = strategies.create(cluster, config.cluster)
    stop = interruption.StopRequest.install()
    exchange = strategies.Exchange(strategy, cluster)
    _require_same_config(config, exchange)
    local_replicas = strategy.num_replicas_in_sync // cluster.num_workers

    source = pipeline.open_source(config.data, config.data.train)
    epochs = Epochs(source.num_examples, config.train.global_batch_size)
    total_steps = config.train.steps or epochs.end_step((config.train.epochs or 1) - 1)

    def train_dataset(start_step: int, end_step: int) -> tf.data.Dataset:
        return pipeline.train_dataset(
            source,
            config.data,
            seed=config.train.seed,
            global_batch_size=config.train.global_batch_size,
            num_workers=cluster.num_workers,
            worker=cluster.rank,
            local_replicas=local_replicas,
            start_step=start_step,
            end_step=end_step,
            class_weight=config.train.class_weight,
        )

    batch_spec = train_dataset(0, 1).element_spec
    with strategy.scope():
        model = model_builder.build(config, batch_spec)
    validation_source, validation_dataset = _validation(config, cluster, local_replicas)
    _require_same_data(source, validation_source, exchange)

    files = run_files.RunFiles(run_dir, active=cluster.is_chief)
    files.write(run_files.CONFIG, config.to_json())
    files.event("started", step=0, workers=cluster.num_workers, task=cluster.describe())
    console = Console(
        sys.stdout if cluster.is_chief else None,
        examples_per_step=config.train.global_batch_size,
    )
    _say_what_we_are(config, cluster, source, validation_source, epochs, total_steps, strategy)

    loop = Loop(
        model=model,
        strategy=strategy,
        exchange=exchange,
        config=config,
        epochs=epochs,
        total_steps=total_steps,
        train_dataset=train_dataset,
        validation_dataset=validation_dataset,
        callbacks=callbacks.user_callbacks(config.train, is_chief=cluster.is_chief),
        stop=stop,
        files=files,
        console=console,
        is_chief=cluster.is_chief,
        local_replicas=local_replicas,
        backup_dir=_backup_dir(config, run_dir),
    )
    state = loop.run()

    code = errors.OK
    version = None
    if cluster.is_chief:
        summary = _summary(config, cluster, loop, model, total_steps, started, run_dir)
        files.write(run_files.SUMMARY, summary)
        try:
            version = _export(
                model, config, validation_source or source, state.logs, files, state.step
            )
        except errors.GateRefused as refused:
            console.line(f"not exported | {refused}")
            code = refused.code
        files.write(
            run_files.SUMMARY, summary | {"export_version": version, "gate_passed": not code}
        )
        files.event("done", step=state.step, exit_code=code)
        console.line(f"done | step {state.step} | {run_dir}")
    # Nobody leaves while the chief still exports, and all leave with its code.
    return int(exchange.sum(np.array([code if cluster.is_chief else 0], np.int64))[0])


def _validation(
    config: Experiment, cluster: Cluster, local_replicas: int
) -> tuple[Any, tf.data.Dataset | None]:
    if not config.data.validation:
        return None, None
    source = pipeline.open_source(config.data, config.data.validation)
    # The training batch of one worker: it is known to fit.
    batch_size = config.train.global_batch_size // cluster.num_workers
    dataset = pipeline.eval_dataset(
        source,
        config.data,
        batch_size=batch_size,
        num_workers=cluster.num_workers,
        worker=cluster.rank,
        class_weight=config.train.class_weight,
    )
    return source, dataset


def _require_same_config(config: Experiment, exchange: strategies.Exchange) -> None:
    """Stops all workers if one has another configuration; paths may differ by node."""
    values = {
        f"{part}.{name}": value
        for part in ("model", "data", "train")
        for name, value in dataclasses.asdict(getattr(config, part)).items()
        if name != "data_dir"
    }
    values["backup.every_steps"] = config.backup.every_steps
    values["version of tensorflow"] = tf.__version__
    digests = np.array([zlib.crc32(repr(value).encode()) for value in values.values()], np.int64)
    exchange.require_equal(list(values), digests, "the configuration", errors.ConfigError)


def _require_same_data(source: Any, validation_source: Any, exchange: strategies.Exchange) -> None:
    """Stops all workers if one counts other examples: it would run another number of steps."""
    sources = [s for s in (source, validation_source) if s]
    counts = np.array([s.num_examples for s in sources], np.int64)
    names = [f"examples of {s.name}" for s in sources]
    exchange.require_equal(names, counts, "the data", errors.DataError)


def _say_what_we_are(
    config: Experiment,
    cluster: Cluster,
    source: Any,
    validation_source: Any,
    epochs: Epochs,
    total_steps: int,
    strategy: tf.distribute.Strategy,
) -> None:
    """Every worker says in one line what it is and reads; the chief adds the whole."""
    batch = config.train.global_batch_size
    share = batch // cluster.num_workers
    print(
        f"{cluster.describe()} | {share} of {batch} examples a step | {config.data.train} | "
        f"pid {os.getpid()}",
        flush=True,
    )
    if not cluster.is_chief:
        return
    validation = f", {validation_source.num_examples:,} for validation" if validation_source else ""
    print(
        f"{config.name} | {epochs.num_examples:,} training examples{validation} | "
        f"{strategy.num_replicas_in_sync} replicas | {total_steps:,} steps",
        flush=True,
    )


def _backup_dir(config: Experiment, run_dir: str) -> str:
    return config.backup.dir or os.path.join(run_dir, "backup")


def _summary(
    config: Experiment,
    cluster: Cluster,
    loop: Loop,
    model: Any,
    total_steps: int,
    started: float,
    run_dir: str,
) -> dict[str, Any]:
    """Returns summary.json: what was done, how fast, and what it cost."""
    state = loop.state
    events = run_files.read_lines(run_dir, run_files.EVENTS)
    starts = [event["time"] for event in events if event["event"] == "started"]
    wall_s = time.time() - min([started, *starts])
    hours = wall_s / 3600 * cluster.num_workers
    return {
        "name": config.name,
        "complete": True,
        "target": _target(config),
        "steps": state.step,
        "stopped_early": state.step < total_steps,
        "epochs": state.epoch,
        "examples": state.step * config.train.global_batch_size,
        "workers": cluster.num_workers,
        "metrics": state.logs,
        "examples_per_s": round(loop.times.examples_per_s, 1),
        "first_loop_s": loop.times.first_loop_s,
        "wall_s": round(wall_s, 3),
        "restarts": max(0, len(starts) - 1),
        "lost_steps": sum(e["lost_steps"] for e in events if e["event"] == "restored"),
        "cost": round(hours * config.monitor.price_per_worker_hour, 4),
        "weights_sha256": weights_sha256(model),
        "export_version": None,
    }


def _target(config: Experiment) -> dict[str, int | None]:
    return {"epochs": config.train.epochs, "steps": config.train.steps}


def _export(
    model: Any,
    config: Experiment,
    source: Any,
    metrics: dict[str, float],
    files: run_files.RunFiles,
    step: int,
) -> int | None:
    """Exports the trained model where the configuration says so; returns the version."""
    if not config.export.dir:
        return None
    result = saved_model.export_trained(model, config, source, metrics)
    files.event(
        "exported",
        step=step,
        version=result.version,
        path=result.path,
        max_difference=result.max_difference,
    )
    print(
        f"exported | version {result.version} | {result.path} | largest difference to the "
        f"trained model {result.max_difference:.1e}",
        flush=True,
    )
    return result.version


def _done_before(config: Experiment, run_dir: str) -> bool:
    """Tells whether this run has reached its target already."""
    summary = run_files.read_json(run_dir, run_files.SUMMARY)
    if not summary or not summary.get("complete"):
        return False
    wanted, reached = _target(config), summary["target"]
    return all(
        value is None or (reached[name] is not None and value <= reached[name])
        for name, value in wanted.items()
    )


def _finish_again(config: Experiment, cluster: Cluster, run_dir: str) -> int:
    """What a rerun of a finished run does: the export, if it is missing; no peer is needed."""
    summary = run_files.read_json(run_dir, run_files.SUMMARY)
    assert summary
    if not cluster.is_chief:
        return errors.OK
    if not summary.get("gate_passed", True):
        print(f"{run_dir}: done before, but the quality gate had refused the model", flush=True)
        return errors.GATE
    files = run_files.RunFiles(run_dir, active=True)
    version = summary["export_version"]
    path = os.path.join(config.export.dir, str(version), "saved_model.pb")
    if config.export.dir and not (version and tf.io.gfile.exists(path)):
        trained = load_trained(run_dir, export=config.export)
        version = _export(
            trained.model, trained.config, trained.source, trained.metrics, files, summary["steps"]
        )
        files.write(run_files.SUMMARY, summary | {"export_version": version})
    print(f"done before | step {summary['steps']} | {run_dir}", flush=True)
    return errors.OK


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A finished run, loaded into this process without a cluster."""

    config: Experiment
    model: Any
    source: Any
    """Validation data, or training data where there is none."""
    metrics: dict[str, float]


def load_trained(run_dir: str, export: Any = None) -> TrainedRun:
    """Loads the model of a run from its last backup.

    Raises:
      ConfigError: there is no run, or no whole backup, under `run_dir`.
    """
    stored = run_files.read_json(run_dir, run_files.CONFIG)
    if stored is None:
        raise errors.ConfigError(f"{run_dir}: no config.json; name the --run_dir of a run")
    config = Experiment.from_dict(stored)
    if export is not None:
        config.export = export
    generation = Generations(_backup_dir(config, run_dir)).newest()
    if generation is None:
        raise errors.ConfigError(
            f"{_backup_dir(config, run_dir)}: holds no whole backup of the run"
        )
    pipeline.preflight(config.data, config.data.train)
    train_source = pipeline.open_source(config.data, config.data.train)
    batch_spec = pipeline.train_dataset(
        train_source,
        config.data,
        seed=config.train.seed,
        global_batch_size=config.train.global_batch_size,
        num_workers=1,
        worker=0,
        local_replicas=1,
        start_step=0,
        end_step=1,
        class_weight=config.train.class_weight,
    ).element_spec
    model = model_builder.build(config, batch_spec)
    restore_variables(model, generation.arrays)
    replica_step.finish(model)
    if config.data.validation:
        pipeline.preflight(config.data, config.data.validation)
        source = pipeline.open_source(config.data, config.data.validation)
    else:
        source = train_source
    return TrainedRun(config, model, source, generation.state["logs"])


def as_steadfast_error(error: BaseException, cluster: Cluster) -> BaseException:
    """Returns `PeerLost` for what TensorFlow raises when a peer is gone, else `error`.

    A lost peer shows up as whatever the collective was doing; the message tells it apart
    from an error of this worker's own graph.
    """
    if cluster.num_workers == 1 or not isinstance(error, tf.errors.OpError):
        return error
    text = str(error)
    transport = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    signs = (
        "Collective ops is aborted",
        "tasks are unhealthy",
        "different incarnation",
        "heartbeat",
    )
    if not isinstance(error, transport) and not any(sign in text for sign in signs):
        return error
    gone = ", ".join(cluster.unreachable(1.0)) or "a peer that restarted or no longer answers"
    return errors.PeerLost(
        f"lost {gone}; the state is saved up to the last backup, start the same command again"
    )
