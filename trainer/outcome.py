"""What a run ends with: summary and export; and what a rerun of a finished one does.

    if outcome.is_done(config, run_dir):
        return outcome.finish_again(config, cluster, run_dir)

A finished run needs no peer: its marker is summary.json, its weights are the last backup.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

import tensorflow as tf

from export import saved_model
from input_pipeline import pipeline
from trainer import errors, model_builder, replica_step
from trainer.backup import restore_variables, weights_sha256
from trainer.cluster import Cluster
from trainer.config import Experiment
from trainer.generations import Generations
from trainer.loop import Loop
from trainer.monitor import run_files


def is_done(config: Experiment, run_dir: str) -> bool:
    """Tells whether this run has reached its target already."""
    summary = run_files.read_json(run_dir, run_files.SUMMARY)
    if not summary or not summary.get("complete"):
        return False
    wanted, reached = _target(config), summary["target"]
    return all(
        value is None or (reached[name] is not None and value <= reached[name])
        for name, value in wanted.items()
    )


def finish_again(config: Experiment, cluster: Cluster, run_dir: str) -> int:
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
        version = export_model(
            trained.model, trained.config, trained.source, trained.metrics, files, summary["steps"]
        )
        files.write(run_files.SUMMARY, summary | {"export_version": version})
    print(f"done before | step {summary['steps']} | {run_dir}", flush=True)
    return errors.OK


def backup_dir(config: Experiment, run_dir: str) -> str:
    """Returns where the generations of this run are kept."""
    return config.backup.dir or os.path.join(run_dir, "backup")


def summary_of(
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


def export_model(
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
    directory = backup_dir(config, run_dir)
    generation = Generations(directory).newest()
    if generation is None:
        raise errors.ConfigError(f"{directory}: holds no whole backup of the run")
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
