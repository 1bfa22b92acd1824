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

from input_pipeline import pipeline  # noqa: E402
from input_pipeline.order import Epochs  # noqa: E402
from input_pipeline.sources.base import Source, Streamed  # noqa: E402
from trainer import callbacks, interruption, model_builder, outcome  # noqa: E402
from trainer import strategy as strategies  # noqa: E402
from trainer.loop import Loop  # noqa: E402
from trainer.monitor import run_files  # noqa: E402
from trainer.monitor.console import PIPED_TO_TERMINAL, Console  # noqa: E402


def run(config: Experiment, cluster: Cluster, run_dir: str) -> int:
    """Trains to the end, exports, and returns the exit code, the same on every worker."""
    started = time.time()
    if outcome.is_done(config, run_dir):
        return outcome.finish_again(config, cluster, run_dir)

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
    validation_source, validation_dataset = _validation(config, cluster)
    _require_same_data(source, validation_source, exchange)

    files = run_files.RunFiles(run_dir, active=cluster.is_chief)
    files.write(run_files.CONFIG, config.to_json())
    files.event("started", step=0, workers=cluster.num_workers, task=cluster.describe())
    console = Console(
        sys.stdout if cluster.is_chief else None,
        examples_per_step=config.train.global_batch_size,
        piped_to_terminal=bool(os.environ.get(PIPED_TO_TERMINAL)),
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
        backup_dir=outcome.backup_dir(config, run_dir),
        data_identity=_data_identity(config, cluster, source),
    )
    state = loop.run()

    code = errors.OK
    if cluster.is_chief:
        summary = outcome.summary_of(config, cluster, loop, model, total_steps, started, run_dir)
        files.write(run_files.SUMMARY, summary)
        version = None
        try:
            version = outcome.export_model(
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


def _validation(config: Experiment, cluster: Cluster) -> tuple[Any, tf.data.Dataset | None]:
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


def _data_identity(config: Experiment, cluster: Cluster, source: Source) -> dict[str, Any]:
    """Returns all that decides which examples a step reads."""
    identity: dict[str, Any] = {
        "train.seed": config.train.seed,
        "train.global_batch_size": config.train.global_batch_size,
        "data.train": config.data.train,
        "data.shuffle": config.data.shuffle,
        "number of training examples": source.num_examples,
    }
    if isinstance(source, Streamed):
        # Files that are read from front to back are divided over the workers.
        identity["number of workers (data.train is streamed)"] = cluster.num_workers
        identity["data.shuffle_buffer"] = config.data.shuffle_buffer
    return identity


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
