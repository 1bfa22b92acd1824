"""Whole runs of `trainer.task` by real processes, as a user starts them."""

import json
import os
import re
import signal
import struct

import pytest

from tests.processes import ROOT, finish, run_cluster, start, start_cluster, tf_config
from trainer.addresses import free_ports

CONFIG = f"--config={ROOT}/tests/programs/tiny_config.py"


def task(run_dir, *options):
    return ["-m", "trainer.task", CONFIG, f"--run_dir={run_dir}", *options]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def summary(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


def wait_for(path, process, count=1):
    """Returns once the process has written `count` lines to `path`."""
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert process.poll() is None, process.communicate()[0]
        # Nothing tells when another process writes a file.
        os.sched_yield()


# ---- a run of two workers ----


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    """A finished run of two workers, each with directories of its own."""
    path = tmp_path_factory.mktemp("two")
    commands = [
        task(path / f"run{i}", f"--config.export.dir={path}/export{i}", "--config.train.epochs=4")
        for i in range(2)
    ]
    return path, run_cluster(commands, cwd=path)


def test_the_chief_reports_and_the_other_says_one_line(two_workers):
    _, (chief, other) = two_workers
    assert re.fullmatch(
        r"worker/1 \(rank 1 of 2\) at \S+ \| 12 of 24 examples a step \| \S+ \| pid \d+\n", other
    )
    epochs = [line for line in chief.splitlines() if line.startswith("epoch ")]
    assert len(epochs) == 4
    assert all("val_accuracy" in line for line in epochs)
    assert len(chief.splitlines()) == 4 + 4  # Who, what, exported, done.
    assert not set(chief + other) & {"\r", "\x1b"}


def test_only_the_chief_writes(two_workers):
    path, _ = two_workers
    assert sorted(os.listdir(path)) == ["export0", "run0"]
    assert sorted(os.listdir(path / "run0")) == [
        "backup", "config.json", "events.jsonl", "metrics.jsonl", "summary.json",
    ]  # fmt: skip
    assert os.listdir(path / "export0") == ["1"]


def test_run_files(two_workers):
    path, _ = two_workers
    run = path / "run0"
    metrics = lines(run / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [5, 9, 13, 17]
    assert [line["epoch"] for line in metrics] == [0, 1, 2, 3]
    parts = ("input_ms", "compute_ms", "backup_ms", "other_ms")
    for line in metrics:
        assert 0 <= line["accuracy"] <= 1
        assert sum(line[part] for part in parts) == pytest.approx(line["step_ms"])
    assert [event["event"] for event in lines(run / "events.jsonl")] == [
        "started", "exported", "done",
    ]  # fmt: skip
    done = summary(run)
    assert done["steps"] == 17
    assert done["workers"] == 2
    assert done["restarts"] == 0
    assert done["export_version"] == 1
    assert re.fullmatch(r"[0-9a-f]{64}", done["weights_sha256"])
    assert done["metrics"]["val_accuracy"] == metrics[-1]["val_accuracy"]


def test_a_rerun_of_a_finished_run_needs_no_peer(two_workers):
    path, _ = two_workers
    env = {"TF_CONFIG": tf_config(free_ports(2), 0)}
    options = (f"--config.export.dir={path}/export0", "--config.train.epochs=4")
    process = start(task(path / "run0", *options), cwd=path, env=env)
    (output,) = finish([process])
    assert process.returncode == 0, output
    assert "done before | step 17" in output
    assert os.listdir(path / "export0") == ["1"]


def test_a_rerun_makes_a_missing_export(two_workers, tmp_path):
    path, _ = two_workers
    options = (f"--config.export.dir={tmp_path}/again", "--config.train.epochs=4")
    process = start(task(path / "run0", *options), cwd=path)
    (output,) = finish([process])
    assert process.returncode == 0, output
    assert (tmp_path / "again" / "1" / "saved_model.pb").exists()


def test_the_export_command_exports_again(two_workers, tmp_path):
    path, _ = two_workers
    command = ["-m", "export.saved_model", str(path / "run0"), f"--dir={tmp_path}/m", "--json"]
    process = start(command, cwd=path)
    (output,) = finish([process])
    assert process.returncode == 0, output
    assert json.loads(output.splitlines()[-1])["version"] == 1


# ---- coming back ----


def test_more_epochs_continue_from_the_end(tmp_path):
    run_cluster([task(tmp_path / "straight", "--config.train.epochs=5")], cwd=tmp_path)
    run_cluster([task(tmp_path / "run", "--config.train.epochs=2")], cwd=tmp_path)
    (output,) = run_cluster([task(tmp_path / "run", "--config.train.epochs=5")], cwd=tmp_path)
    assert "restored | step 9 | epoch 3" in output
    assert [line["step"] for line in lines(tmp_path / "run/metrics.jsonl")] == [5, 9, 13, 17, 21]
    straight, continued = summary(tmp_path / "straight"), summary(tmp_path / "run")
    assert continued["weights_sha256"] == straight["weights_sha256"]
    assert continued["metrics"] == straight["metrics"]


DECIDING = (
    "--config.train.callbacks=tests.programs.tiny:deciding",
    "--config.train.epochs=40",
    "--config.backup.every_steps=3",
    "--config.monitor.log_every_steps=2",
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A run of two workers that EarlyStopping ends: its summary and metrics."""
    path = tmp_path_factory.mktemp("uninterrupted")
    outputs = run_cluster([task(path / f"run{i}", *DECIDING) for i in range(2)], cwd=path)
    return summary(path / "run0"), lines(path / "run0/metrics.jsonl"), outputs


def test_callbacks_decide_alike_on_all_workers(uninterrupted):
    done, _, outputs = uninterrupted
    seen = [[line for line in output.splitlines() if "seen" in line] for output in outputs]
    assert seen[0] == seen[1]
    assert done["stopped_early"]
    assert done["epochs"] < 40
    assert len({line.split("rate=")[1].split()[0] for line in seen[0] if "rate=" in line}) > 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_interrupted_equals_uninterrupted(tmp_path, uninterrupted, number):
    expected, expected_metrics, _ = uninterrupted
    commands = [task(tmp_path / f"run{i}", *DECIDING) for i in range(2)]
    processes = start_cluster(commands, cwd=tmp_path)
    wait_for(tmp_path / "run0/metrics.jsonl", processes[0], 4)
    processes[1].send_signal(number)
    outputs = finish(processes)
    codes = [process.returncode for process in processes]
    if number == signal.SIGTERM:
        assert codes == [143, 143], outputs
        assert all("asked to stop: saved step" in output for output in outputs)
    else:
        assert codes == [138, -9], outputs
        assert outputs[0].count("error: lost 127.0.0.1:") == 1
        assert "Traceback" not in outputs[0]
    run_cluster(commands, cwd=tmp_path)
    done = summary(tmp_path / "run0")
    assert done["restarts"] == 1
    for key in ("weights_sha256", "steps", "epochs", "stopped_early", "metrics"):
        assert done[key] == expected[key], key
    assert timeless(lines(tmp_path / "run0/metrics.jsonl")) == timeless(expected_metrics)


def timeless(metrics):
    return [{k: v for k, v in m.items() if not k.endswith(("_ms", "_s"))} for m in metrics]


KILLED = (
    "--config.train.callbacks=tests.programs.tiny:killed",
    "--config.train.steps_per_loop=1",
    "--config.backup.every_steps=1",
    "--config.monitor.log_every_steps=2",
)


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory):
    path = tmp_path_factory.mktemp("never")
    run_cluster([task(path / "run", *KILLED)], cwd=path)
    return summary(path / "run"), lines(path / "run/metrics.jsonl")


@pytest.mark.parametrize(
    "moment",
    ["train begin", "epoch 1 begin", "batch 0 end", "batch 3 end", "epoch 0 end", "epoch 2 end",
     "train end"],
)  # fmt: skip
def test_killed_at_any_moment_ends_with_the_same_run(tmp_path, never_killed, moment):
    expected, expected_metrics = never_killed
    command = task(tmp_path / "run", *KILLED)
    process = start(command, cwd=tmp_path, env={"KILL_AT": moment})
    finish([process])
    assert process.returncode == -signal.SIGKILL
    run_cluster([command], cwd=tmp_path)
    done = summary(tmp_path / "run")
    for key in ("weights_sha256", "steps", "epochs", "metrics"):
        assert done[key] == expected[key], key
    assert timeless(lines(tmp_path / "run/metrics.jsonl")) == timeless(expected_metrics)


def test_a_run_that_was_stopped_early_stays_stopped(tmp_path):
    options = ("--config.train.callbacks=tests.programs.tiny:killed_and_deciding",)
    command = task(tmp_path / "run", *options, "--config.train.epochs=40")
    process = start(command, cwd=tmp_path, env={"KILL_AT": "train end"})
    finish([process])
    assert process.returncode == -signal.SIGKILL
    before = lines(tmp_path / "run/metrics.jsonl")
    run_cluster([command], cwd=tmp_path)
    done = summary(tmp_path / "run")
    assert done["stopped_early"]
    assert lines(tmp_path / "run/metrics.jsonl") == before
    assert done["metrics"]["val_loss"] == before[-1]["val_loss"]


def test_a_backup_of_other_data_is_refused(tmp_path):
    run_cluster([task(tmp_path / "run", "--config.train.epochs=1")], cwd=tmp_path)
    process = start(task(tmp_path / "run", "--config.train.global_batch_size=20"), cwd=tmp_path)
    (output,) = finish([process])
    assert process.returncode == 2, output
    assert "train.global_batch_size=20, but the backup in" in output


def test_resumes_with_another_number_of_workers(tmp_path):
    two = [task(tmp_path / f"run{i}", "--config.train.epochs=2") for i in range(2)]
    run_cluster(two, cwd=tmp_path)
    (output,) = run_cluster([task(tmp_path / "run0", "--config.train.epochs=4")], cwd=tmp_path)
    assert "restored | step 9 | epoch 3" in output
    assert [line["step"] for line in lines(tmp_path / "run0/metrics.jsonl")] == [5, 9, 13, 17]
    straight = [task(tmp_path / f"straight{i}", "--config.train.epochs=4") for i in range(2)]
    run_cluster(straight, cwd=tmp_path)
    # The same examples in the same batches. Dropout belongs to the replica, so the curves
    # differ, but not by as much as the loss falls in an epoch.
    expected = summary(tmp_path / "straight0")["metrics"]["loss"]
    assert summary(tmp_path / "run0")["metrics"]["loss"] == pytest.approx(expected, rel=0.2)


def test_streamed_files_keep_their_number_of_workers(tmp_path):
    program = f"from tests.programs import tiny; tiny.write_records({str(tmp_path / 'part')!r})"
    finish([start(["-c", program], cwd=tmp_path)])
    options = (
        f"--config.data.train=tfrecord:{tmp_path}/part",
        "--config.data.features=tests.programs.tiny:record_features",
    )
    two = [task(tmp_path / f"run{i}", *options, "--config.train.epochs=1") for i in range(2)]
    run_cluster(two, cwd=tmp_path)
    process = start(task(tmp_path / "run0", *options), cwd=tmp_path)
    (output,) = finish([process])
    assert process.returncode == 2, output
    assert "number of workers (data.train is streamed)=1, but the backup in" in output


def test_callbacks_that_write_run_on_the_chief_only(tmp_path):
    for i in range(2):
        (tmp_path / f"cwd{i}").mkdir()
    ports = free_ports(2)
    processes = [
        start(
            task(tmp_path / "run", "--config.train.callbacks=tests.programs.tiny:writing"),
            cwd=tmp_path / f"cwd{i}",
            env={"TF_CONFIG": tf_config(ports, i)},
        )
        for i in range(2)
    ]
    outputs = finish(processes)
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert sorted(os.listdir(tmp_path / "cwd0")) == [
        "checkpoint-1.keras", "checkpoint-2.keras", "checkpoint-3.keras", "log.csv", "tensorboard",
    ]  # fmt: skip
    assert os.listdir(tmp_path / "cwd1") == []
    assert len((tmp_path / "cwd0/log.csv").read_text().splitlines()) == 1 + 3
    for output in outputs:
        rates = re.findall(r"seen end \d+ rate=(\S+)", output)
        assert [float(rate) for rate in rates] == pytest.approx([0.01, 0.005, 0.01 / 3])


# ---- how much is trained ----


@pytest.mark.parametrize(
    ("options", "steps", "epochs"),
    [
        (("--config.train.epochs=none", "--config.train.steps=8"), [5, 8], [0, 1]),
        (("--config.train.global_batch_size=30",), [4, 7, 10], [0, 1, 2]),
        (("--config.data.train=memory:tests.programs.tiny:ids",), [5, 9, 13], [0, 1, 2]),
    ],
)
def test_any_number_of_examples_ends_well_on_two_workers(tmp_path, options, steps, epochs):
    run_cluster([task(tmp_path / "run", *options) for _ in range(2)], cwd=tmp_path)
    metrics = lines(tmp_path / "run/metrics.jsonl")
    assert [line["step"] for line in metrics] == steps
    assert [line["epoch"] for line in metrics] == epochs


def test_the_gate_refuses_on_all_workers(tmp_path):
    options = (f"--config.export.dir={tmp_path}/m", "--config.export.gate=('val_accuracy>=1.1',)")
    processes = start_cluster([task(tmp_path / "run", *options) for _ in range(2)], cwd=tmp_path)
    outputs = finish(processes)
    assert [process.returncode for process in processes] == [3, 3], outputs
    assert "val_accuracy>=1.1: val_accuracy is" in outputs[0]
    assert not any((tmp_path / "m").glob("*"))
    process = start(task(tmp_path / "run", *options), cwd=tmp_path)
    finish([process])
    assert process.returncode == 3


def test_workers_that_drift_apart_are_an_error_that_names_the_variable(tmp_path):
    options = ("--config.train.callbacks=tests.programs.tiny:drifting",)
    processes = start_cluster([task(tmp_path / "run", *options) for _ in range(2)], cwd=tmp_path)
    outputs = finish(processes)
    assert [process.returncode for process in processes] == [1, 1], outputs
    for output in outputs:
        assert "workers disagree on the value of: model/sequential/dense/kernel on 1" in output


def test_a_lone_worker_does_not_wait_for_a_parameter_server_or_evaluator(tmp_path):
    ports = free_ports(3)
    config = json.loads(tf_config(ports[:1], 0))
    config["cluster"] |= {"ps": [f"127.0.0.1:{ports[1]}"], "evaluator": [f"127.0.0.1:{ports[2]}"]}
    env = {"TF_CONFIG": json.dumps(config)}
    process = start(task(tmp_path / "run", "--config.train.epochs=1"), cwd=tmp_path, env=env)
    (output,) = finish([process])
    assert process.returncode == 0, output
    assert output.startswith("worker/0 (rank 0 of 1, chief)")


def test_launch_brings_a_killed_worker_back_to_the_same_weights(tmp_path, uninterrupted):
    expected, _, _ = uninterrupted
    run = tmp_path / "run"
    command = ["-m", "trainer.launch", "--workers=2", CONFIG, f"--run_dir={run}", *DECIDING]
    launch = start(command, cwd=tmp_path, env={"TF_CONFIG": ""})
    wait_for(run / "metrics.jsonl", launch, 4)
    pid = json.loads((run / "cluster.json").read_text())["tasks"][1]["pid"]
    os.kill(pid, signal.SIGKILL)
    (output,) = finish([launch])
    assert launch.returncode == 0, output
    done = summary(run)
    assert done["restarts"] == 1, output
    assert done["weights_sha256"] == expected["weights_sha256"]


def test_waiting_for_a_slow_input_is_seen(tmp_path):
    # Of several workers the quicker one would wait for the other instead of its input.
    options = ("--config.data.augment=tests.programs.tiny:slow",)
    run_cluster([task(tmp_path / "run", *options)], cwd=tmp_path)
    for line in lines(tmp_path / "run/metrics.jsonl"):
        assert line["input_ms"] > line["compute_ms"]


# ---- mistakes end at once, with 2 and one line ----

TWO = '{"cluster":{"worker":["127.0.0.1:1","127.0.0.1:2"]},"task":{"type":"worker","index":0}}'


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("{'cluster'", (), "TF_CONFIG="),
        ('{"sparseCluster":{"worker":{"1":"a:1"}},"task":{}}', (), "would train alone"),
        ("", ("--config.cluster.expected_workers=2",), "cluster.expected_workers=2"),
        (TWO.replace('"index":0', '"index":2'), (), "worker/2 is not in the cluster"),
        (TWO.replace('"index":0', '"index":-1'), (), "worker/-1 is not in the cluster"),
        (TWO.replace(":2", ":1"), (), "same address"),
        (TWO.replace('"type":"worker"', '"type":"ps"'), (), "task ps/0 is not in the cluster"),
        (TWO, ("--config.train.epoch=3",), "did you mean --config.train.epochs?"),
        (TWO, ("--config.train.epochs=2.5",), "2.5"),
        (TWO, ("--config.train.steps=3",), "give one of them"),
        (TWO, ("--config.train.global_batch_size=25",), "use 24 or 26"),
        (TWO, ("--config.data.train=tfrecord:/nope/*", "--config.data.features=a:b"), "/nope/*"),
        (TWO, ("--config.data.train=csv:/x",), "data.train='csv:/x'"),
    ],
)  # fmt: skip
def test_mistakes_end_before_any_peer_is_waited_for(tmp_path, env, options, message):
    process = start(task(tmp_path / "run", *options), cwd=tmp_path, env={"TF_CONFIG": env})
    (output,) = finish([process], timeout_s=60)
    assert process.returncode == 2, output
    assert message in output
    assert len(output.splitlines()) == 1, output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--config.data.train=memory:tests.programs.tiny:too_few",), "10 examples, fewer than"),
        (("--config.data.train=memory:tests.programs.tiny:none",), "no examples"),
        (("--config.data.label=target",), "no feature 'target'"),
        (("--config.model.builder=tests.programs.tiny:build_nothing",), "not a keras.Model"),
        (("--config.model.builder=tests.programs.tiny:absent",), "no function 'absent'"),
        (("--config.model.builder=no.such:build",), "no module 'no'"),
        (("--config.model.builder=tests.programs.tiny:build_accumulating",), "accumulation"),
        (
            ("--config.train.callbacks=tests.programs.tiny:with_keras_backup",),
            "backup.every_steps and backup.dir",
        ),
    ],
)
def test_mistakes_in_user_code_are_one_line(tmp_path, options, message):
    process = start(task(tmp_path / "run", *options), cwd=tmp_path)
    (output,) = finish([process])
    assert process.returncode == 2, output
    assert message in output
    assert "Traceback" not in output


def test_a_cut_file_ends_one_worker_of_two_before_it_waits(tmp_path):
    # A header that promises more than there is.
    (tmp_path / "part-0").write_bytes(struct.pack("<Q", 100) + b"\0" * 20)
    options = (f"--config.data.train=tfrecord:{tmp_path}/part-*", "--config.data.features=a:b")
    process = start(task(tmp_path / "run", *options), cwd=tmp_path, env={"TF_CONFIG": TWO})
    (output,) = finish([process], timeout_s=60)
    assert process.returncode == 2, output
    assert f"{tmp_path}/part-0 is cut or corrupt: record 0 at byte 0" in output


def test_workers_with_different_configurations_stop(tmp_path):
    commands = [task(tmp_path / "run", f"--config.train.seed={i}") for i in range(2)]
    processes = start_cluster(commands, cwd=tmp_path)
    outputs = finish(processes)
    assert [process.returncode for process in processes] == [2, 2], outputs
    assert all("workers disagree on the configuration: train.seed" in out for out in outputs)


def test_workers_with_different_data_stop(tmp_path):
    options = ("--config.data.train=memory:tests.programs.tiny:other_on_each_worker",)
    processes = start_cluster([task(tmp_path / "run", *options) for _ in range(2)], cwd=tmp_path)
    outputs = finish(processes)
    assert [process.returncode for process in processes] == [2, 2], outputs
    assert all("workers disagree on the data: examples of memory:" in out for out in outputs)


def test_a_missing_peer_is_named_and_ends_with_138(tmp_path):
    ports = free_ports(2)
    process = start(
        task(tmp_path / "run", "--config.cluster.startup_timeout_s=3"),
        cwd=tmp_path,
        env={"TF_CONFIG": tf_config(ports, 0)},
    )
    (output,) = finish([process], timeout_s=60)
    assert process.returncode == 138, output
    assert f"cluster.startup_timeout_s=3; not answering: 127.0.0.1:{ports[1]};" in output
