"""Callbacks keep what they have counted, and only that."""

import json

import numpy as np

from trainer import compat

compat.import_tensorflow()
import keras  # noqa: E402

from trainer.callback_state import CallbackState  # noqa: E402


class Model:
    """What EarlyStopping asks of a model."""

    stop_training = False
    optimizer = None

    def get_weights(self):
        return [np.arange(3, dtype=np.float32)]

    def set_weights(self, weights):
        self.weights = weights


def stopping(patience=3):
    callback = keras.callbacks.EarlyStopping(
        "loss", patience=patience, restore_best_weights=True, mode="auto"
    )
    callback.set_model(Model())
    callback.on_train_begin()
    return callback


def through_json(state):
    saved, arrays = state.capture()
    return json.loads(json.dumps(saved)), arrays


def seen(losses, patience=3):
    callback = stopping(patience)
    state = CallbackState([callback])
    state.mark_fresh()
    for epoch, loss in enumerate(losses):
        callback.on_epoch_end(epoch, {"loss": loss})
    return callback, state


def test_early_stopping_continues_where_it_was():
    callback, state = seen([1.0, 2.0, 3.0])
    saved, arrays = through_json(state)
    other = stopping()
    restored = CallbackState([other])
    restored.mark_fresh()
    restored.restore(saved, arrays)
    assert other.wait == callback.wait == 2
    assert other.best == callback.best == 1.0
    assert other.best_weights[0].tobytes() == callback.best_weights[0].tobytes()
    assert other.best_weights[0].dtype == np.float32
    other.on_epoch_end(3, {"loss": 4.0})
    assert other.model.stop_training
    assert restored.capture()[0][0]["state"]["wait"] == 3


def test_configuration_is_not_state():
    _, state = seen([1.0, 2.0], patience=3)
    other = stopping(patience=7)
    restored = CallbackState([other])
    restored.mark_fresh()
    restored.restore(*state.capture())
    assert other.patience == 7
    assert other.wait == 1


def test_infinity_survives():
    callback = keras.callbacks.Callback()
    state = CallbackState([callback])
    state.mark_fresh()
    callback.best = float("inf")
    callback.curve = [np.float32(1.5), {"a": None}]
    other = keras.callbacks.Callback()
    CallbackState([other]).restore(*through_json(state))
    assert other.best == float("inf")
    assert other.curve == [1.5, {"a": None}]


def test_own_state_methods_win():
    class Counter(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.table = {1: 2}

        def get_state(self):
            return [[k, v] for k, v in self.table.items()]

        def set_state(self, value):
            self.table = dict(value)

    counter = Counter()
    counter.table = {5: 6}
    other = Counter()
    CallbackState([other]).restore(*through_json(CallbackState([counter])))
    assert other.table == {5: 6}


def test_a_worker_without_the_chiefs_writers_matches_by_class():
    callback, _ = seen([1.0, 2.0])
    chief = CallbackState([keras.callbacks.Callback(), callback])
    other = stopping()
    CallbackState([other]).restore(*chief.capture())
    assert other.wait == 1
