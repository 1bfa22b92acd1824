"""Which example stands where: a pure function of seed, epoch and position.

    epochs = Epochs(num_examples=1437, global_batch_size=64)
    epochs.end_step(0)                       # 23: the step that completes epoch 0
    record_indices(positions, 1437, seed=0)  # int64 [n]

Training reads one endless sequence of positions p = 0, 1, 2, ...; step t takes positions
[t*B, (t+1)*B). Epoch p // n is a permutation of all n records, so each record comes
exactly once per epoch, nothing is left out, and a batch may hold the end of one epoch and
the beginning of the next. The number of workers does not occur: worker w of W takes the
w-th part of each batch.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from trainer.errors import ConfigError, DataError


@dataclasses.dataclass(frozen=True)
class Epochs:
    """Where epochs begin and end, in steps.

    A step that holds the end of one epoch and the beginning of the next belongs to the
    first of them: epoch e is the steps [start_step(e), end_step(e)).

    Raises:
      DataError: there are no examples, or fewer than one batch.
    """

    num_examples: int
    global_batch_size: int

    def __post_init__(self) -> None:
        if self.num_examples < 1:
            raise DataError("data.train has no examples: correct the address or add data")
        if self.num_examples < self.global_batch_size:
            raise DataError(
                f"data.train has {self.num_examples} examples, fewer than "
                f"train.global_batch_size={self.global_batch_size}: use a smaller batch"
            )

    def start_step(self, epoch: int) -> int:
        """Returns the first step of `epoch`, counted from 0."""
        return self.end_step(epoch - 1) if epoch else 0

    def end_step(self, epoch: int) -> int:
        """Returns the number of steps after which `epoch` is complete."""
        return -(-(epoch + 1) * self.num_examples // self.global_batch_size)

    def epoch_of_step(self, step: int) -> int:
        """Returns the epoch that is open while step `step` (from 0) runs."""
        return step * self.global_batch_size // self.num_examples


def per_replica_batch(global_batch_size: int, num_replicas: int) -> int:
    """Returns the examples of one replica in one step.

    Raises:
      ConfigError: the batch does not divide evenly; names the nearest sizes that do.
    """
    size, rest = divmod(global_batch_size, num_replicas)
    if rest:
        near = [n * num_replicas for n in (size, size + 1) if n]
        raise ConfigError(
            f"train.global_batch_size={global_batch_size} does not divide over {num_replicas} "
            f"replicas: use {' or '.join(map(str, near))}"
        )
    return size


def record_indices(
    positions: tf.Tensor, num_examples: int, *, seed: int, shuffle: bool = True
) -> tf.Tensor:
    """Returns the record at each of `positions`; graph code.

    The permutation is TensorFlow's `RandomIndexShuffle`, a block cipher walked until it
    falls inside the range: it needs no buffer and no list of indices.

    Args:
      positions: int64 [n].
      num_examples: records of an epoch.
      seed: seed of the run.
      shuffle: False for the order of the files, in every epoch.

    Returns:
      int64 [n], each in [0, num_examples).
    """
    epochs, offsets = positions // num_examples, positions % num_examples
    if not shuffle:
        return offsets
    last = tf.fill(tf.shape(offsets), tf.constant(num_examples - 1, tf.int64))
    # The default of 4 rounds leaves small ranges nearly in order.
    return tf.raw_ops.RandomIndexShuffle(
        index=offsets, seed=_cipher_keys(seed, epochs), max_index=last, rounds=8
    )


def _cipher_keys(seed: int, epochs: tf.Tensor) -> tf.Tensor:
    """Returns a key for the permutation of each epoch: int64 [n] -> int64 [n, 3].

    Up to 65,536 records the cipher uses 8 bits of each of the three numbers, so seed and
    epoch as they are would bring the same orders again after 256 epochs.
    """
    bits = _mixed(_mixed(tf.constant(seed, tf.uint64)) + tf.cast(epochs, tf.uint64))
    parts = [tf.bitwise.right_shift(bits, tf.constant(n, tf.uint64)) for n in (0, 21, 42)]
    return tf.cast(tf.bitwise.bitwise_and(tf.stack(parts, 1), 2**21 - 1), tf.int64)


def _mixed(values: tf.Tensor) -> tf.Tensor:
    """Returns uint64 values whose every bit depends on all bits of `values` (SplitMix64)."""
    values += tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values ^= tf.bitwise.right_shift(values, tf.constant(shift, tf.uint64))
        values *= tf.constant(factor, tf.uint64)
    return values ^ tf.bitwise.right_shift(values, tf.constant(31, tf.uint64))


def example_seeds(positions: tf.Tensor, seed: int) -> tf.Tensor:
    """Returns a seed for the randomness of each position: int64 [n] -> int32 [n, 2].

    A position is used once in a run, so no two examples share a seed, whoever reads them.
    """
    low = tf.bitwise.bitwise_and(positions, 2**31 - 1)
    high = tf.bitwise.bitwise_xor(positions // 2**31, tf.constant(seed, tf.int64))
    high = tf.bitwise.bitwise_and(high, 2**31 - 1)
    return tf.cast(tf.stack([high, low], -1), tf.int32)


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of every batch that one worker reads: positions [w*B/W, (w+1)*B/W) of it."""

    global_batch_size: int
    num_workers: int
    worker: int

    @property
    def size(self) -> int:
        """Examples of this worker in one step."""
        return self.global_batch_size // self.num_workers

    def positions(self, step: tf.Tensor) -> tf.Tensor:
        """Returns this worker's positions of a step: int64 [] -> int64 [size]; graph code."""
        first = step * self.global_batch_size + self.worker * self.size
        return first + tf.range(self.size, dtype=tf.int64)

    def count_before(self, position: int) -> int:
        """Returns how many of the positions before `position` are this worker's."""
        steps, rest = divmod(position, self.global_batch_size)
        return steps * self.size + min(max(rest - self.worker * self.size, 0), self.size)

    def first_position(self, step: int) -> int:
        """Returns this worker's first position of a step."""
        return step * self.global_batch_size + self.worker * self.size
