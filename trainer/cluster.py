"""From TF_CONFIG to a checked `Cluster`: who trains, who is chief, where everyone is.

    cluster = Cluster.from_env(os.environ, config.cluster)
    cluster.require_training_role()
    os.environ["TF_CONFIG"] = json.dumps(cluster.tf_config())

Plain Python: mistakes are reported before TensorFlow starts, which would answer many of
them by waiting for ever, or by training alone on every machine.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from trainer import addresses
from trainer.errors import ConfigError

if TYPE_CHECKING:
    from trainer.config import ClusterConfig

TRAINING_ROLES = ("chief", "worker")
ROLES = (*TRAINING_ROLES, "ps", "evaluator")
_TOP_LEVEL = ("cluster", "task", "environment", "rpc_layer")
_FORM = '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}'
_WHY_NOT_DYNAMIC = (
    "a dynamic cluster hides the other workers from this task, so each would train alone; "
    "set enableDynamicWorker: false in the TFJob, or list all workers in cluster.worker"
)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The tasks of a job and which of them this process is.

    Ranks run over the tasks that train: the chief first if there is one, then the workers
    by index.
    """

    task_type: str = ""
    """`chief`, `worker`, `ps` or `evaluator`; empty: one process without a cluster."""

    task_index: int = 0
    """Index of this task within its type."""

    workers: tuple[str, ...] = ()
    """`HOST:PORT` of each task that trains, in rank order; empty without a cluster."""

    ps: tuple[str, ...] = ()
    """`HOST:PORT` of each parameter server."""

    evaluators: tuple[str, ...] = ()
    """`HOST:PORT` of each evaluator, where TF_CONFIG lists them."""

    has_chief: bool = False
    """Whether rank 0 is a task of type `chief`, not worker 0."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str], config: ClusterConfig) -> Cluster:
        """Reads and checks `TF_CONFIG`; unset, empty and `{}` mean one local process.

        Raises:
          ConfigError: TF_CONFIG is wrong, or does not match `config.expected_workers`.
        """
        cluster = cls._from_tf_config(environ.get("TF_CONFIG", ""))
        expected = config.expected_workers
        if expected is not None and expected != cluster.num_workers:
            found = (
                f"TF_CONFIG describes {cluster.num_workers}"
                if cluster.task_type
                else "TF_CONFIG is not set or empty, which means 1"
            )
            raise ConfigError(
                f"cluster.expected_workers={expected}: {found}; set TF_CONFIG on every machine, "
                "or correct cluster.expected_workers"
            )
        return cluster

    @classmethod
    def _from_tf_config(cls, text: str) -> Cluster:
        spec = _parse(text)
        jobs, task = spec.get("cluster"), spec.get("task")
        if "sparseCluster" in spec:
            raise ConfigError(f"TF_CONFIG: sparseCluster: {_WHY_NOT_DYNAMIC}")
        if not jobs:
            unknown = sorted(set(spec) - set(_TOP_LEVEL))
            if unknown:
                raise ConfigError(
                    f"TF_CONFIG: no cluster, but an unknown key {unknown[0]!r}; expected {_FORM}"
                )
            if task:
                raise ConfigError(
                    f"TF_CONFIG: task={_show(task)} without a cluster; add the cluster, or unset "
                    "TF_CONFIG to train in one process"
                )
            return cls()
        tasks = _tasks_by_role(jobs)
        role, index = _role_and_index(task, tasks)
        return cls(
            task_type=role,
            task_index=index,
            workers=tasks["chief"] + tasks["worker"],
            ps=tasks["ps"],
            evaluators=tasks["evaluator"],
            has_chief=bool(tasks["chief"]),
        )

    @property
    def num_workers(self) -> int:
        """Number of tasks that train, the chief included; at least 1."""
        return max(1, len(self.workers))

    @property
    def distributed(self) -> bool:
        """Whether more than one task trains."""
        return self.num_workers > 1

    @property
    def trains(self) -> bool:
        """Whether this task takes part in training."""
        return self.task_type in ("", *TRAINING_ROLES)

    @property
    def rank(self) -> int:
        """This task's place among those that train, from 0; -1 if it does not train."""
        if not self.trains:
            return -1
        return self.task_index + (self.has_chief and self.task_type == "worker")

    @property
    def is_chief(self) -> bool:
        """Whether this task writes backups, logs and the export: rank 0, and only it."""
        return self.rank == 0

    @property
    def address(self) -> str:
        """`HOST:PORT` of this task; empty without a cluster or for an unlisted evaluator."""
        if self.trains:
            return self.workers[self.rank] if self.workers else ""
        tasks = self.ps if self.task_type == "ps" else self.evaluators
        return tasks[self.task_index] if tasks else ""

    def describe(self) -> str:
        """Returns one line for the log, such as `worker/1 (rank 1 of 2) at b:2222`."""
        if not self.task_type:
            return "one process"
        what = f"{self.task_type}/{self.task_index}"
        if self.trains:
            what += f" (rank {self.rank} of {self.num_workers}{', chief' * self.is_chief})"
        return f"{what} at {self.address}" if self.address else what

    def require_training_role(self) -> None:
        """Checks that this task trains.

        Raises:
          ConfigError: it is a parameter server or an evaluator.
        """
        if not self.trains:
            role = "parameter server" if self.task_type == "ps" else "evaluator"
            raise ConfigError(
                f"TF_CONFIG: task.type={self.task_type!r}: the {role} role is not supported yet; "
                "start only chief and worker tasks (every worker takes part in evaluation)"
            )

    def tf_config(self) -> dict[str, Any]:
        """Returns TF_CONFIG for TensorFlow: only tasks that train, `{}` without a cluster.

        TensorFlow would wait for listed parameter servers and evaluators before it starts.
        """
        if not self.task_type or not self.trains:
            return {}
        jobs = {"chief": list(self.workers[:1])} if self.has_chief else {}
        if workers := list(self.workers[1 if self.has_chief else 0 :]):
            jobs["worker"] = workers
        return {"cluster": jobs, "task": {"type": self.task_type, "index": self.task_index}}

    def bypass_proxies(self, environ: MutableMapping[str, str]) -> str | None:
        """Keeps traffic between the tasks away from HTTP proxies, by changing `environ`.

        gRPC obeys `http_proxy` even for addresses beside it, and then waits for ever and
        in silence. Call before TensorFlow starts.

        Returns:
          A line for the log, or None if there was nothing to change.
        """
        if not self.workers:
            return None
        hosts = [addresses.host(a) for a in (*self.workers, *self.ps, *self.evaluators)]
        return addresses.bypass_proxies(hosts, environ)

    def unreachable(self, timeout_s: float) -> list[str]:
        """Returns the peers that accept no TCP connection within `timeout_s` seconds.

        A name that does not resolve counts as well. All are tried at once, so that the
        answer comes after `timeout_s` however many they are.
        """
        peers = [address for address in self.workers if address != self.address]
        answered: set[str] = set()

        def probe(address: str) -> None:
            if addresses.accepts_connections(address, timeout_s):
                answered.add(address)

        threads = [threading.Thread(target=probe, args=[p], daemon=True) for p in peers]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            # Resolving a name has no timeout of its own.
            thread.join(max(0.0, deadline - time.monotonic()))
        return [peer for peer in peers if peer not in answered]


def _parse(text: str) -> dict[str, Any]:
    """Returns TF_CONFIG as an object; empty text is an empty one."""
    text = text.strip()
    if not text:
        return {}
    try:
        spec = json.loads(text)
    except ValueError as error:
        why = " ".join(str(error).split())
        if text.startswith(("{'", "{ '")):
            why = "single quotes; write it with double quotes (json.dumps, not str)"
        raise ConfigError(f"TF_CONFIG={_show(text)}: not JSON: {why}") from None
    if not isinstance(spec, dict):
        raise ConfigError(f"TF_CONFIG={_show(spec)}: must be an object such as {_FORM}")
    return spec


def _tasks_by_role(jobs: Any) -> dict[str, tuple[str, ...]]:
    """Checks `cluster` and returns the addresses of each role, `()` for absent ones."""
    if not isinstance(jobs, dict):
        raise ConfigError(f"TF_CONFIG: cluster={_show(jobs)}: must be an object such as {_FORM}")
    if "master" in jobs:
        raise ConfigError(_no_master("cluster.master"))
    for role, tasks in jobs.items():
        if role not in ROLES:
            raise ConfigError(
                f"TF_CONFIG: cluster.{role}: no such role; there are {', '.join(ROLES)}"
            )
        if isinstance(tasks, dict) and role in TRAINING_ROLES:
            raise ConfigError(f"TF_CONFIG: cluster.{role}={_show(tasks)}: {_WHY_NOT_DYNAMIC}")
        if not isinstance(tasks, list):
            raise ConfigError(
                f'TF_CONFIG: cluster.{role}={_show(tasks)}: must be a list, ["HOST:PORT", ...]'
            )
    seen: dict[str, str] = {}
    for role, tasks in jobs.items():
        for index, address in enumerate(tasks):
            where = f"cluster.{role}[{index}]"
            addresses.check(address, f"TF_CONFIG: {where}")
            first = seen.setdefault(address.lower(), where)
            if first != where:
                raise ConfigError(
                    f"TF_CONFIG: {where}={address!r}: same address as {first}; give every task "
                    "its own"
                )
    tasks_by_role = {role: tuple(jobs.get(role, ())) for role in ROLES}
    if len(tasks_by_role["chief"]) > 1:
        raise ConfigError(
            f"TF_CONFIG: cluster.chief={_show(jobs['chief'])}: there can be only one chief; list "
            "the others in cluster.worker"
        )
    if not tasks_by_role["chief"] and not tasks_by_role["worker"]:
        raise ConfigError(
            f"TF_CONFIG: cluster={_show(jobs)}: no task that trains; list at least one in "
            "cluster.worker"
        )
    return tasks_by_role


def _role_and_index(task: Any, tasks: dict[str, tuple[str, ...]]) -> tuple[str, int]:
    """Checks `task` against the cluster and returns its type and index."""
    if not task:
        raise ConfigError(
            "TF_CONFIG: cluster without a task: each machine must say which task it is, "
            '"task": {"type": "worker", "index": N} (under Slurm, N is $SLURM_PROCID)'
        )
    if not isinstance(task, dict):
        raise ConfigError(
            f'TF_CONFIG: task={_show(task)}: must be an object, {{"type": "worker", "index": 0}}'
        )
    role, index = task.get("type"), task.get("index")
    if role == "master":
        raise ConfigError(_no_master("task.type='master'"))
    if role not in ROLES:
        raise ConfigError(f"TF_CONFIG: task.type={role!r}: must be one of {', '.join(ROLES)}")
    if isinstance(index, str) and index.removeprefix("-").isdecimal():
        index = int(index)
    if not isinstance(index, int) or isinstance(index, bool):
        raise ConfigError(
            f"TF_CONFIG: task.index={_show(index)}: must be an integer, this task's place in "
            f"cluster.{role}"
        )
    # Operators up to 1.1 leave the evaluator out of the cluster.
    unlisted_evaluator = role == "evaluator" and not tasks[role] and index >= 0
    if not unlisted_evaluator and not 0 <= index < len(tasks[role]):
        there = [f"{name}/{i}" for name in ROLES for i in range(len(tasks[name]))]
        shown = ", ".join(there[:8]) + (f", ... ({len(there)} tasks)" if len(there) > 8 else "")
        raise ConfigError(
            f"TF_CONFIG: task {role}/{index} is not in the cluster [{shown}]; correct task.type "
            "and task.index, or list its address"
        )
    return role, index


def _no_master(where: str) -> str:
    return (
        f"TF_CONFIG: {where}: 'master' is a role of TensorFlow 1's Estimator, which no strategy "
        "accepts any more; call it 'chief' (in a TFJob: replica type Chief)"
    )


def _show(value: Any) -> str:
    """Returns `value` on one line, shortened."""
    text = " ".join((value if isinstance(value, str) else json.dumps(value)).split())
    return text if len(text) <= 80 else text[:77] + "..."
