"""Rules 1, 4 and 5: N workers equal one, every example is evaluated once, workers agree.

Each case runs in processes of its own and compares numbers with Keras' own `fit` and
`evaluate` in one process.
"""

import functools

import numpy as np
import pytest

from tests.processes import finish, run_cluster, start

# float32 rounding after 8 steps; the differences seen are below 2e-7.
ROUNDING = 2e-6


def tasks(tmp_path, workers, *options):
    """Runs `workers` processes of tests.programs.steps; returns what each ended with."""
    paths = [str(tmp_path / f"{workers}-{i}.npz") for i in range(workers)]
    run_cluster([["-m", "tests.programs.steps", path, *options] for path in paths], cwd=tmp_path)
    return [dict(np.load(path)) for path in paths]


def one(tmp_path, name, *options):
    path = str(tmp_path / f"{name}.npz")
    process = start(["-m", "tests.programs.steps", path, *options], cwd=tmp_path)
    (output,) = finish([process])
    assert process.returncode == 0, output
    return dict(np.load(path))


def assert_close(expected, found, tolerance=ROUNDING):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=name)


def assert_same(results):
    for other in results[1:]:
        for name, value in results[0].items():
            assert value.tobytes() == other[name].tobytes(), name


def assert_copies_agree(result):
    copies = [name for name in result if name.startswith("copy1/")]
    assert copies
    for name in copies:
        assert result[name].tobytes() == result["copy0/" + name[6:]].tobytes(), name


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("batchnorm", ("--eval_examples=31",)),  # With an L2 regularizer.
        ("adam", ("--weights",)),  # With global_clipnorm and sample weights.
        ("custom", ()),  # A train_step of its own, built by its first call.
    ],
)
def test_any_number_of_workers_equals_keras_fit(tmp_path, kind, options):
    run = functools.partial(tasks, tmp_path)
    options = (f"--model={kind}", *options)
    expected = one(tmp_path, "plain", *options, "--plain")
    if kind == "custom":
        del expected["log/loss"]  # Its train_step does not report a loss.
    assert_close(expected, one(tmp_path, "one", *options))
    replicas = one(tmp_path, "replicas", *options, "--devices=2")
    assert_close(expected, replicas)
    assert_copies_agree(replicas)
    for workers in (2, 3, 4):
        results = run(workers, *options)
        assert_close(expected, results[0])
        assert_same(results)


@pytest.mark.parametrize("kind", ["clipnorm", "schedule"])
def test_two_workers_equal_keras_fit(tmp_path, kind):
    expected = one(tmp_path, "plain", f"--model={kind}", "--plain")
    results = tasks(tmp_path, 2, f"--model={kind}")
    assert_close(expected, results[0])
    assert_same(results)


def test_clip_norm_clips_the_gradient_of_the_whole_batch(tmp_path):
    options = ("--model=dense", "--clip_norm=0.05")
    expected = one(tmp_path, "one", *options)
    unclipped = one(tmp_path, "unclipped", "--model=dense")
    assert_close(expected, tasks(tmp_path, 3, *options)[0])
    name = "model/sequential/dense/kernel"
    assert np.abs(expected[name] - unclipped[name]).max() > 100 * ROUNDING


def test_moving_statistics_agree_without_synchronized_batchnorm(tmp_path):
    results = tasks(tmp_path, 2, "--model=local_batchnorm")
    assert_same(results)
    replicas = one(tmp_path, "replicas", "--model=local_batchnorm", "--devices=2")
    assert_copies_agree(replicas)


def test_mixed_float16_agrees_on_skipped_steps(tmp_path):
    options = ("--model=adam", "--precision=mixed_float16")
    results = tasks(tmp_path, 2, *options)
    assert_same(results)
    # Half precision rounds each replica's gradient by itself.
    assert_close(one(tmp_path, "one", *options), results[0], tolerance=2e-3)


@pytest.mark.parametrize(("workers", "examples", "batch"), [(2, 3, 4), (4, 3, 2), (3, 25, 4)])
def test_every_example_is_evaluated_once(tmp_path, workers, examples, batch):
    evaluate = (f"--eval_examples={examples}", "--steps=1")
    expected = one(tmp_path, "plain", *evaluate, "--plain")
    results = tasks(tmp_path, workers, *evaluate, f"--eval_batch={batch}")
    assert_close(expected, results[0])
    assert_same(results)
    if workers == 2:
        replicas = one(tmp_path, "r", *evaluate, f"--eval_batch={batch}", "--devices=2")
        assert_close(expected, replicas)


def test_dropout_differs_between_replicas_and_repeats(tmp_path):
    first = tasks(tmp_path, 2, "--model=dropout")
    assert_same(first)
    again = tasks(tmp_path, 2, "--model=dropout")
    assert_same([first[0], again[0]])
    # Replicas in one process draw what workers draw: noise belongs to (seed, step, replica).
    replicas = one(tmp_path, "replicas", "--model=dropout", "--devices=2")
    assert_copies_agree(replicas)
    assert_close({k: v for k, v in first[0].items() if "copy" not in k}, replicas)
    masks = one(tmp_path, "masks", "--model=masks", "--devices=2")
    (name,) = (k[6:] for k in masks if k.startswith("copy0/") and k.endswith("/mask"))
    assert not np.array_equal(masks[f"copy0/{name}"], masks[f"copy1/{name}"])
