"""Everything that reaches into TensorFlow or Keras below their public names.

Each function says why it is needed and which change elsewhere would remove it;
`tests/test_compat.py` fails when one stops being needed or stops working.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Holds back what native code writes to stderr; shows it if the block raises.

    TensorFlow prints its build options through absl before absl's log level is set, so
    TF_CPP_MIN_LOG_LEVEL does not reach those lines. Removed by
    https://github.com/tensorflow/tensorflow/issues/62770.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3") < "2":
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(saved, 2)
            held.seek(0)
            os.write(2, held.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def import_tensorflow() -> Any:
    """Imports TensorFlow and Keras without their start-up noise; returns `tensorflow`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    with quiet_stderr():
        import keras
        import tensorflow as tf
    assert keras
    return tf


def set_heartbeat_timeout(seconds: float, *, leader: str) -> None:
    """Sets after how much silence the cluster counts a peer as lost.

    Args:
      seconds: of silence.
      leader: type of the task of rank 0, `chief` or `worker`; it keeps the count.

    Must be called before the strategy is created. There is no public option:
    https://github.com/tensorflow/tensorflow/issues/58434.
    """
    from tensorflow.python.eager import context

    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{leader}/replica:0/task:0",
        heartbeat_timeout_in_ms=int(seconds * 1000),
        # A peer that is gone must not hold the others at the end.
        shutdown_barrier_timeout_in_ms=int(seconds * 1000),
    )


def reduce_before_apply(
    optimizer: Any, reduce: Callable[[list[Any]], list[Any]], transform: Callable | None
) -> None:
    """Makes `optimizer` sum gradients over replicas *before* anything else sees them.

    Keras sums them at the very end, after clipping and after mixed_float16's check for
    finite values, so that replicas clip by their own norm and may disagree on whether to
    skip a step (https://github.com/keras-team/keras/issues/19891 is of this kind).

    Args:
      optimizer: a built Keras optimizer, possibly a LossScaleOptimizer.
      reduce: list of gradients (no None) -> the same, summed over all replicas.
      transform: applied to the summed, unscaled gradients, such as clipping; or None.
    """
    inner = optimizer
    while hasattr(inner, "inner_optimizer"):
        inner = inner.inner_optimizer
    inner._all_reduce_sum_gradients = list

    if transform is not None:
        inner_apply = inner.apply

        def apply_transformed(grads: Any, trainable_variables: Any = None) -> Any:
            return inner_apply(_on_present(transform, grads), trainable_variables)

        inner.apply = apply_transformed

    outer_apply = optimizer.apply

    def apply_reduced(grads: Any, trainable_variables: Any = None) -> Any:
        return outer_apply(_on_present(reduce, grads), trainable_variables)

    optimizer.apply = apply_reduced


def _on_present(function: Callable, grads: Any) -> list[Any]:
    """Applies `function` to the gradients that are not None, in place of them."""
    grads = list(grads)
    results = iter(function([g for g in grads if g is not None]))
    return [None if g is None else next(results) for g in grads]


def forward_state(model: Any) -> list[Any]:
    """Returns the float variables that layers update in their forward pass.

    Those are the weights a layer created as non-trainable, such as BatchNormalization's
    moving statistics. `model.non_trainable_weights` would add every frozen weight, and
    Keras has no public way to tell them apart.
    """
    seen: dict[int, Any] = {}
    for layer in model._flatten_layers():
        for variable in layer._non_trainable_variables:
            if "float" in str(variable.dtype):
                seen[id(variable)] = variable
    return list(seen.values())


def build(model: Any, batch: Any) -> None:
    """Creates every variable of a compiled model from one batch: layers, loss, metrics.

    Keras does this inside `fit`, where it fails on a distributed batch
    (https://github.com/keras-team/keras/issues/20585); there is no public call for it.
    Call under the strategy's scope.
    """
    model._symbolic_build(data_batch=batch)


def settle_monitor(callback: Any) -> None:
    """Lets a callback that watches a metric choose its direction now, not at its first epoch.

    Keras' EarlyStopping, ReduceLROnPlateau and ModelCheckpoint choose it when their first
    epoch ends, and turn the sign of `min_delta` then: once too often after a restore. The
    model must be built. There is no public call.
    """
    if getattr(callback, "monitor_op", True) is None:
        callback._set_monitor_op()
