"""Trains on a local cluster, one process per worker, restarted after retryable exits.

  python -m trainer.launch --workers=2 --config=configs/digits.py --run_dir=runs/digits

With TF_CONFIG set it starts and supervises only this machine's task; leave out --workers.
Worker 0's output is shown, all of it is in RUN_DIR/logs. Ctrl-C lets the workers save their
state and ends them; the same command continues from there.

Exit codes: 0 done, 1 a bug, 2 configuration or data is wrong, 3 the quality gate refused
the model, 138 gave up after cluster.max_restarts restarts without progress, 143 stopped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from trainer import errors
from trainer.addresses import free_ports
from trainer.child_process import Task
from trainer.cluster import Cluster
from trainer.command_line import CommandLine, parse
from trainer.config import ClusterConfig
from trainer.monitor.console import PIPED_TO_TERMINAL
from trainer.supervisor import Supervisor

# Beyond the heartbeat timeout: the rest of leaving after a peer was lost.
_LEAVE_S = 5.0


def main(argv: list[str]) -> int:
    """Runs the cluster and returns its exit code."""
    try:
        command = parse(argv, doc=__doc__, define=_define_flags)
        command.experiment.require_runnable()
        supervisor = _supervisor(command)
    except errors.SteadfastError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.code
    with supervisor.handling_signals():
        return supervisor.run()


def _define_flags(values: Any) -> None:
    from absl import flags

    flags.DEFINE_integer("workers", None, "Workers to start here.", flag_values=values)
    flags.DEFINE_string("run_dir", None, "Directory of this run's files.", flag_values=values)


def _supervisor(command: CommandLine) -> Supervisor:
    """Chooses between a local cluster and this machine's task of a larger one."""
    workers, run_dir = command.flags.workers, command.flags.run_dir
    config = command.experiment.cluster
    if not run_dir or "://" in run_dir:
        raise errors.ConfigError(
            f"--run_dir={run_dir or ''}: name a local directory for this run's files"
        )
    arguments = [
        *(sys.executable, "-m", "trainer.task"),
        *command.config_args,
        f"--run_dir={run_dir}",
    ]
    in_cluster = bool(Cluster.from_env(os.environ, ClusterConfig()).task_type)
    if in_cluster and workers is not None:
        raise errors.ConfigError(
            f"--workers={workers}: TF_CONFIG is set too, so which cluster? Unset TF_CONFIG for a "
            "local one, or leave out --workers to start this machine's task"
        )
    if not in_cluster and (workers is None or workers < 1):
        raise errors.ConfigError(
            f"--workers={'' if workers is None else workers}: say how many to start, such as "
            "--workers=2, or set TF_CONFIG to start this machine's task"
        )
    if in_cluster:
        cluster = Cluster.from_env(os.environ, config)
        cluster.require_training_role()
        return Supervisor(
            lambda: [_this_task(cluster, arguments)],
            run_dir,
            max_restarts=config.max_restarts,
            leave_s=config.heartbeat_timeout_s + _LEAVE_S,
            # Process ids of several machines do not belong into one file.
            write_cluster=cluster.is_chief,
        )
    if config.expected_workers not in (None, workers):
        raise errors.ConfigError(
            f"--workers={workers} but cluster.expected_workers={config.expected_workers}: make "
            "them equal, or leave out cluster.expected_workers"
        )
    return Supervisor(
        lambda: _local_tasks(workers, arguments),
        run_dir,
        max_restarts=config.max_restarts,
        leave_s=config.heartbeat_timeout_s + _LEAVE_S,
    )


def _this_task(cluster: Cluster, arguments: list[str]) -> Task:
    return Task(
        name=f"{cluster.task_type}/{cluster.task_index}",
        command=arguments,
        env={"PYTHONUNBUFFERED": "1", **os.environ, **_progress_bar(cluster.rank)},
        address=cluster.address,
    )


def _local_tasks(workers: int, arguments: list[str]) -> list[Task]:
    """Returns one task per worker, on ports that are free now."""
    ports = free_ports(workers)
    return [
        Task(
            name=f"worker/{index}",
            command=arguments,
            env=_environment(ports, index, os.environ),
            address=f"127.0.0.1:{ports[index]}",
        )
        for index in range(workers)
    ]


def _environment(ports: list[int], index: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns `environ` with TF_CONFIG and this worker's share of the machine's cores."""
    tf_config = {
        "cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]},
        "task": {"type": "worker", "index": index},
    }
    cores = max(1, len(os.sched_getaffinity(0)) // len(ports))
    return {
        # Each worker would otherwise start as many threads as the machine has cores.
        "TF_NUM_INTRAOP_THREADS": str(cores),
        # Two at least, so that input does not wait for compute.
        "TF_NUM_INTEROP_THREADS": str(max(2, cores)),
        "PYTHONUNBUFFERED": "1",
        **environ,
        **_progress_bar(index),
        "TF_CONFIG": json.dumps(tf_config),
    }


def _progress_bar(index: int) -> dict[str, str]:
    """Lets the task that is shown send its progress bar, if there is a terminal to show it on."""
    return {PIPED_TO_TERMINAL: "1"} if index == 0 and sys.stdout.isatty() else {}


if __name__ == "__main__":
    sys.exit(main(sys.argv))
