"""From a `Cluster` to a `tf.distribute` strategy, and exact exchange between workers.

    strategy = create(cluster, config.cluster)
    exchange = Exchange(strategy, cluster)
    total = exchange.sum(np.array([1.0]))       # one contribution per worker
    state = exchange.broadcast(state_of_chief)  # bytes

Under TensorFlow, what one process raises the others see as a lost peer; nothing here retries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from trainer import compat, errors, rendezvous

if TYPE_CHECKING:
    from trainer.cluster import Cluster
    from trainer.config import ClusterConfig

# Larger messages gain nothing: TensorFlow's ring copies each one as a whole.
_CHUNK_WORDS = 4 * 2**20


def create(cluster: Cluster, config: ClusterConfig) -> tf.distribute.Strategy:
    """Creates the strategy; waits for every peer of a distributed cluster.

    Raises:
      ConfigError: the collective implementation needs hardware that is not there.
      PeerLost: a peer is not there after `startup_timeout_s`.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if config.collective == "nccl" and not gpus:
        raise errors.ConfigError(
            "cluster.collective='nccl' needs GPUs and there are none: use auto"
        )
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if not cluster.task_type:
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        if len(devices) > 1:
            return tf.distribute.MirroredStrategy([device.name for device in devices])
        return tf.distribute.get_strategy()
    leader = "chief" if cluster.has_chief else "worker"
    compat.set_heartbeat_timeout(config.heartbeat_timeout_s, leader=leader)
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=getattr(
            tf.distribute.experimental.CommunicationImplementation, config.collective.upper()
        )
    )
    if cluster.distributed:
        rendezvous.wait_for_peers(cluster, config.startup_timeout_s)
    with rendezvous.ends_in_time(config.startup_timeout_s), compat.quiet_stderr():
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def replica_id() -> int:
    """Returns the number of the replica whose step is being traced, counted over all workers."""
    context = tf.distribute.get_replica_context()
    # A constant tensor under the default strategy, an int elsewhere.
    return int(tf.get_static_value(context.replica_id_in_sync_group))


class Exchange:
    """Exact exchange of host values between the workers, one value per worker.

    On one worker every operation is the identity. All workers must call the same
    operations in the same order.
    """

    def __init__(self, strategy: tf.distribute.Strategy, cluster: Cluster):
        self._strategy = strategy
        self._is_chief = cluster.is_chief
        self._alone = not cluster.distributed
        local = strategy.num_replicas_in_sync // cluster.num_workers

        @tf.function(reduce_retracing=True)
        def reduce(value: tf.Tensor) -> tf.Tensor:
            def contribute() -> tf.Tensor:
                # A worker speaks once, however many replicas it has. The copy gives the
                # value a device, without which there is nothing to reduce it on.
                mine = tf.identity(value) if replica_id() % local == 0 else tf.zeros_like(value)
                context = tf.distribute.get_replica_context()
                return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)

            return strategy.experimental_local_results(strategy.run(contribute))[0]

        self._reduce = reduce

    def sum(self, value: np.ndarray) -> np.ndarray:
        """Returns the elementwise sum of `value` over all workers (float32/64, int32/64)."""
        if self._alone:
            return value
        return self._reduce(tf.constant(value)).numpy()

    def any(self, flag: bool) -> bool:
        """Returns whether any worker passed True."""
        return bool(self.sum(np.array([flag], np.int64))[0] > 0)

    def barrier(self) -> None:
        """Returns once every worker has called it."""
        self.sum(np.zeros([1], np.int64))

    def broadcast(self, data: bytes) -> bytes:
        """Returns the chief's `data` on every worker; the others' is ignored.

        Zeros from everybody else make the sum of integers an exact copy.
        """
        if self._alone:
            return data
        size = int(self.sum(np.array([len(data) if self._is_chief else 0], np.int64))[0])
        words = np.zeros(-(-size // 4), np.int32)
        if self._is_chief:
            words.view(np.uint8)[:size] = np.frombuffer(data, np.uint8)
        for start in range(0, len(words), _CHUNK_WORDS):
            words[start : start + _CHUNK_WORDS] = self.sum(words[start : start + _CHUNK_WORDS])
        return words.view(np.uint8)[:size].tobytes()

    def require_equal(
        self,
        names: list[str],
        digests: np.ndarray,
        what: str,
        error: type[Exception] = RuntimeError,
    ) -> None:
        """Checks that every worker holds the same `digests` (int64, one per name).

        Raises:
          error: on all workers alike; names what differs.
        """
        if self._alone:
            return
        chiefs = self.sum(digests if self._is_chief else np.zeros_like(digests))
        differing = self.sum((digests != chiefs).astype(np.int64))
        bad = [f"{names[i]} on {differing[i]} of the workers" for i in np.flatnonzero(differing)]
        if bad:
            raise error(f"workers disagree on {what}: {'; '.join(bad[:5])}")


def as_peer_lost(error: BaseException, cluster: Cluster) -> BaseException:
    """Returns `PeerLost` for what TensorFlow raises when a peer is gone, else `error`.

    A lost peer shows up as whatever the collective was doing; the message tells it apart
    from an error of this worker's own graph.
    """
    if not cluster.distributed or not isinstance(error, tf.errors.OpError):
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
