"""The outer loop: epochs, callbacks, validation, logs; the steps are `inner_loop.py`'s.

    loop = Loop(model=model, ...)
    state = loop.run()

Every worker runs the same loop over the same numbers. A loop of steps ends at a multiple
of `train.steps_per_loop` within the epoch, so everything that happens between loops,
backups included, happens at steps that depend on the configuration alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from input_pipeline.order import Epochs
from trainer import replica_step
from trainer.backup import BackupAndRestore, RunState
from trainer.config import Experiment
from trainer.errors import Stopped
from trainer.evaluate import Evaluator
from trainer.inner_loop import InnerLoop, LoopOutput
from trainer.interruption import StopRequest
from trainer.metrics import MetricSums
from trainer.monitor.console import Console
from trainer.monitor.run_files import RunFiles
from trainer.monitor.step_times import StepTimes
from trainer.strategy import Exchange


class Loop:
    """Trains a built model to the end of the run, from wherever a backup left it.

    Args:
      model: compiled, built, its optimizer prepared (`replica_step.prepare`).
      train_dataset: (start_step, end_step) -> this worker's batches of these steps.
      validation_dataset: this worker's share, or None without validation.
      data_identity: what gives a step its place in the data; a backup fits no other.
    """

    def __init__(
        self,
        *,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        exchange: Exchange,
        config: Experiment,
        epochs: Epochs,
        total_steps: int,
        train_dataset: Callable[[int, int], tf.data.Dataset],
        validation_dataset: tf.data.Dataset | None,
        callbacks: list[keras.callbacks.Callback],
        stop: StopRequest,
        # Where it is seen.
        files: RunFiles,
        console: Console,
        # Who we are.
        is_chief: bool,
        local_replicas: int,
        backup_dir: str,
        data_identity: dict[str, Any],
    ):
        self._model = model
        self._exchange = exchange
        self._config = config
        self._epochs = epochs
        self._total_steps = total_steps
        self._train_dataset = train_dataset
        self._validation_dataset = validation_dataset
        self._stop = stop
        self._files = files
        self._console = console
        self._sums = MetricSums(model)
        self._inner = InnerLoop(model, strategy, self._sums, local_replicas=local_replicas)
        self._evaluator = Evaluator(model, strategy, self._sums, local_replicas=local_replicas)
        self.state = RunState(
            totals=self._sums.zeros(),
            data=data_identity,
            total_steps=total_steps,
        )
        self._backup = BackupAndRestore(
            backup_dir,
            config.backup.every_steps or "epoch",
            state=self.state,
            exchange=exchange,
            is_chief=is_chief,
            keep=config.backup.keep,
            others=callbacks,
        )
        # Last, so that a backup holds what the others did at the same moment.
        self._callbacks = keras.callbacks.CallbackList(
            [*callbacks, self._backup],
            add_history=False,
            model=model,
            epochs=self._last_epoch + 1,
            verbose=0,
        )
        self.times = StepTimes(config.train.global_batch_size)
        self.lost_steps = 0
        """Steps that an earlier process had done and this one does again."""

    @property
    def _last_epoch(self) -> int:
        return self._epochs.epoch_of_step(self._total_steps - 1)

    def _end_step(self, epoch: int) -> int:
        return min(self._epochs.end_step(epoch), self._total_steps)

    def run(self) -> RunState:
        """Trains to the end and returns the final state.

        Raises:
          Stopped: a worker was asked to stop; all have saved the same step.
        """
        state = self.state
        self._model.stop_training = False
        self._callbacks.on_train_begin()
        if state.step:
            # The line of an epoch that is still open will be written again.
            still_open = state.step == self._end_step(state.epoch)
            newest = self._files.drop_metrics_after(state.step - still_open)
            self.lost_steps = max(0, newest - state.step)
            self._files.event("restored", step=state.step, lost_steps=self.lost_steps)
            self._console.line(f"restored | step {state.step} | epoch {state.epoch + 1}")
        else:
            self._files.drop_metrics_after(0)
        # A run that was complete and now has more steps reopens its last, partial epoch.
        if state.step < min(self._epochs.start_step(state.epoch), self._total_steps):
            state.epoch = self._epochs.epoch_of_step(state.step)
        iterator = iter(self._train_dataset(state.step, self._total_steps))
        while state.epoch <= self._last_epoch:
            if self._exchange.any(self._model.stop_training):
                break
            self._run_epoch(iterator)
        self._callbacks.on_train_end(state.logs)
        replica_step.finish(self._model)
        return state

    def _run_epoch(self, iterator: Iterator) -> None:
        state, epoch = self.state, self.state.epoch
        first = self._epochs.start_step(epoch)
        end = self._end_step(epoch)
        if state.step == first:
            self._callbacks.on_epoch_begin(epoch)
        self._console.begin_epoch(
            epoch, epochs=self._last_epoch + 1, steps=end - first, done=state.step - first
        )
        stop_training = False
        while state.step < end and not stop_training:
            done = state.step - first
            loop = self._config.train.steps_per_loop
            stop_training = self._run_steps(
                iterator, first, min(loop - done % loop, end - state.step)
            )
        logs = self._sums.results(state.totals)
        if self._validation_due(epoch):
            start = time.perf_counter()
            assert self._validation_dataset is not None
            validation = self._evaluator.run(self._validation_dataset)
            logs |= {f"val_{name}": value for name, value in validation.items()}
            self.times.leave_out(time.perf_counter() - start)
        state.logs = state.logs | logs
        self._log(epoch, logs)
        self._console.end_epoch(logs)
        state.epoch += 1
        state.totals = self._sums.zeros()
        backup_before = self._backup.seconds
        self._callbacks.on_epoch_end(epoch, dict(logs))
        self.times.add_backup(self._backup.seconds - backup_before)

    def _run_steps(self, iterator: Iterator, first: int, steps: int) -> bool:
        """Runs one loop of steps; returns whether a callback of any worker wants to stop."""
        state = self.state
        begin = state.step
        self._callbacks.on_train_batch_begin(begin - first)
        flags = [self._model.stop_training, self._stop.requested]
        output: LoopOutput = self._inner.run(iterator, steps, flags)
        state.totals = state.totals + output.sums
        state.step += steps
        logs = self._sums.results(state.totals)
        self.times.add(output, steps)
        self._console.update(state.step - first, logs)
        # Before the callbacks, of which the last is the backup: a backup of a step implies
        # its line. The end of an epoch has a line of its own.
        every = self._config.monitor.log_every_steps
        if state.step // every > begin // every and state.step != self._end_step(state.epoch):
            self._log(state.epoch, logs)
        backup_before = self._backup.seconds
        self._callbacks.on_train_batch_end(state.step - first - 1, dict(logs))
        self.times.add_backup(self._backup.seconds - backup_before)
        stop_training, asked_to_stop = output.flags
        if asked_to_stop:
            self._backup.save()
            self._files.event("preempted", step=state.step, signal=self._stop.signal_name)
            raise Stopped(f"asked to stop: saved step {state.step}, start the same command again")
        return bool(stop_training)

    def _validation_due(self, epoch: int) -> bool:
        if self._validation_dataset is None:
            return False
        every = self._config.train.validate_every_epochs
        last = self.state.step == self._total_steps
        return last or (every > 0 and (epoch + 1) % every == 0)

    def _log(self, epoch: int, logs: dict[str, Any]) -> None:
        self._files.metrics({"step": self.state.step, "epoch": epoch, **logs, **self.times.take()})
