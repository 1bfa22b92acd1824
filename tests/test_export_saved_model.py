"""Gate, kills, failures and strategies: what is published, and that nothing else is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from export import saved_model
from export.config import ExportConfig
from export.verify import verify
from tests import export_cases
from tests.test_export_versions import Poller
from trainer.addresses import free_ports
from trainer.errors import ConfigError, DataError, GateRefused, SteadfastError

PROGRAM = ("-m", "tests.export_program")


def test_refused_model_publishes_nothing_and_names_every_failed_threshold(tmp_path: Path) -> None:
    case = export_cases.cnn()
    config = ExportConfig(
        dir=str(tmp_path / "model"), gate=("val_accuracy>=0.97", "val_loss<1", "val_auc>0.5")
    )
    with pytest.raises(GateRefused) as refused:
        saved_model.export(
            case.model, config, metrics={"val_accuracy": 0.5, "val_loss": 0.2}, **case.arguments()
        )
    assert refused.value.code == 3
    assert "val_accuracy is 0.5" in str(refused.value)
    assert "no metric 'val_auc'" in str(refused.value)
    assert "val_loss is" not in str(refused.value)
    assert os.listdir(tmp_path) == []


def test_model_that_answers_differently_is_not_published(tmp_path: Path) -> None:
    case = export_cases.random_answers()
    with pytest.raises(SteadfastError, match=r"nothing was published: .*output 'output' at batch"):
        saved_model.export(
            case.model, ExportConfig(dir=str(tmp_path)), metrics={}, **case.arguments()
        )
    assert os.listdir(tmp_path) == []


def test_export_without_base_path_or_examples_is_refused(tmp_path: Path) -> None:
    case = export_cases.cnn()
    with pytest.raises(ConfigError, match=r"export\.dir is not set"):
        saved_model.export(case.model, ExportConfig(), metrics={}, **case.arguments())
    case.golden["image"] = case.golden["image"][:0]
    with pytest.raises(DataError, match=r"data\.validation is not empty"):
        saved_model.export(
            case.model, ExportConfig(dir=str(tmp_path)), metrics={}, **case.arguments()
        )


# Killed when staging appears, when weights are written, and when the check runs.
def test_killed_exports_leave_no_version_and_the_next_one_sweeps(
    tmp_path: Path, child_env: Callable[..., dict[str, str]]
) -> None:
    base = tmp_path / "model"
    with Poller(base) as poller:
        for trigger in ("", "variables", "assets.extra/manifest.json"):
            process = subprocess.Popen(
                [sys.executable, *PROGRAM, "export", str(base)],
                env=child_env(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            before = set(base.glob(".staging-*"))
            while process.poll() is None:
                new = set(base.glob(".staging-*")) - before
                if any((staging / trigger).exists() for staging in new):
                    break
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
            left = os.listdir(base)
            assert left
            assert not [name for name in left if name.isdigit()]
        case = export_cases.cnn()
        result = saved_model.export(
            case.model, ExportConfig(dir=str(base)), metrics={}, **case.arguments()
        )
    assert result.version == 1
    assert os.listdir(base) == ["1"]
    assert poller.incomplete == []
    assert verify(result.path).max_difference <= 1e-5


def check_published(base: Path, printed: str) -> None:
    """Checks the program's version against the answers that it stored before."""
    version, difference = json.loads(printed)
    assert (version, os.listdir(base)) == (1, ["1"])
    assert difference <= 1e-5
    import tensorflow as tf

    case = export_cases.cnn()
    loaded = tf.saved_model.load(str(base / "1"))
    answers = loaded.signatures["serving_default"](image=tf.constant(case.golden["image"]))
    trained = np.load(f"{base}.npy")
    np.testing.assert_allclose(answers["output"].numpy(), trained, rtol=0, atol=1e-5)
    untrained = case.model(export_cases.scale_image(case.golden), training=False).numpy()
    assert np.abs(untrained - trained).max() > 1e-3
    # Whoever loads it needs no strategy: plain variables, one copy of each.
    assert len(loaded.parameters) == 7
    assert not any(isinstance(v, tf.distribute.DistributedValues) for v in loaded.parameters)


def test_model_of_two_replicas_in_one_process(
    tmp_path: Path, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    base = tmp_path / "model"
    done = python(*PROGRAM, "mirrored", str(base))
    assert done.returncode == 0, done.stderr
    check_published(base, done.stdout)


def test_chief_of_two_workers_exports_alone(
    tmp_path: Path, child_env: Callable[..., dict[str, str]]
) -> None:
    base = tmp_path / "model"
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    processes = []
    for index in range(2):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        processes.append(
            subprocess.Popen(
                [sys.executable, *PROGRAM, "workers", str(base)],
                env=child_env(TF_CONFIG=json.dumps(task)),
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    try:
        outputs = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[1] == ""
    check_published(base, outputs[0])
