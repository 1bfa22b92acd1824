"""Each workaround in compat.py is still needed, and still works.

A test that fails here after an upgrade means: the reason is gone, delete the workaround.
"""

import os
import subprocess
import sys

import pytest

from tests.processes import ROOT, finish, start
from trainer import compat

compat.import_tensorflow()
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from trainer.callback_state import CallbackState  # noqa: E402

NOISE = ("oneDNN", "cudart", "cpu_feature_guard", "absl::InitializeLog")


def imports(code):
    """Runs an import with quiet settings and returns what it wrote to stderr."""
    env = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, text=True, capture_output=True, check=True
    ).stderr


def test_tensorflow_is_noisy_without_quiet_stderr():
    assert any(word in imports("import tensorflow") for word in NOISE)


def test_import_is_quiet():
    assert imports("from trainer import compat; compat.import_tensorflow()") == ""


def test_quiet_stderr_shows_all_when_it_fails(capfd):
    def fail():
        with compat.quiet_stderr():
            os.write(2, b"the reason\n")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "the reason" in capfd.readouterr().err


def small_model(optimizer, *layers):
    model = keras.Sequential([keras.layers.Input((4,)), *layers, keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def test_keras_clips_before_it_sums():
    """Keras 3.15 clips each replica's gradient; reduce_before_apply clips the sum."""
    process = start(["-m", "tests.programs.clip"], cwd=ROOT)
    (output,) = finish([process])
    assert process.returncode == 0, output
    keras_norm, our_norm = map(float, output.split())
    # Two replicas with opposite large gradients of 3 and -2: the sum, 1, clips to 0.5;
    # clipped before, they cancel.
    assert keras_norm == pytest.approx(0.0, abs=1e-6)
    assert our_norm == pytest.approx(0.5, abs=1e-6)


def test_none_gradients_keep_their_place():
    assert compat._on_present(lambda g: [x + 1 for x in g], [1, None, 3]) == [2, None, 4]


def test_build_makes_the_metrics_that_keras_leaves_to_fit():
    model = small_model("sgd")
    model.compile("sgd", "mse", metrics=["mae"])
    before = len(model.metrics_variables)
    compat.build(model, (tf.zeros([2, 4]), tf.zeros([2, 1])))
    assert len(model.metrics_variables) > before


def test_forward_state_is_not_what_keras_calls_non_trainable():
    frozen = keras.layers.Dense(3)
    norm = keras.layers.BatchNormalization()
    model = small_model("sgd", frozen, norm, keras.layers.Dropout(0.5))
    frozen.trainable = False
    found = {v.path.split("/")[-1] for v in compat.forward_state(model)}
    assert found == {"moving_mean", "moving_variance"}
    public = {v.path.split("/")[-1] for v in model.non_trainable_weights}
    assert "kernel" in public


def test_watchers_take_a_worse_value_for_the_best_without_settle_monitor():
    def restored(*, settle):
        made = keras.callbacks.ReduceLROnPlateau("loss", patience=3, min_delta=0.5)
        made.set_model(small_model("sgd"))
        made.on_train_begin()
        if settle:
            CallbackState([made]).mark_fresh()
        # As it was before the restart; Keras had turned the sign when the first epoch ended.
        made.best, made.min_delta = 1.0, -0.5
        made.on_epoch_end(1, {"loss": 1.2})
        return made.best

    assert restored(settle=False) == 1.2
    assert restored(settle=True) == 1.0
