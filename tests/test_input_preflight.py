"""Counting the data before the strategy exists leaves TensorFlow's runtime alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import input_cases as cases
from tests.processes import tf_config

CONTEXT_PROGRAM = """
import sys
from input_pipeline import pipeline
from tests.input_cases import HERE
from input_pipeline.config import DataConfig
import tensorflow as tf

control, data_dir, *sources = sys.argv[1:]
configs = [DataConfig(train=s, data_dir=data_dir, features=HERE + ":features") for s in sources]
print([pipeline.preflight(c, c.train) for c in configs])
if control == "control":
    tf.constant(1)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
assert strategy.num_replicas_in_sync == 1
for config in configs:
    source = pipeline.open_source(config, config.train)
    dataset = pipeline.eval_dataset(source, config, batch_size=3, num_workers=1, worker=0)
    print([len(batch[1]) for batch in dataset.take(1)])
"""


@pytest.mark.parametrize("control", ["", "control"])
def test_a_strategy_can_be_made_after_preflight(
    tmp_path: Path, python: Callable, free_port: Callable[[], int], control: str
) -> None:
    cases.write_tfrecords(tmp_path, [5])
    cases.write_array_records(tmp_path, [6])
    sources = [f"tfrecord:{tmp_path}/*.tfrecord", f"array_record:{tmp_path}/*.array_record"]
    if not control:  # prepared on the way
        sources += ["tfds:digits/test", f"memory:{cases.HERE}:hundred"]
    done = python(
        "-c", CONTEXT_PROGRAM, control, str(tmp_path / "data"), *sources,
        env={"TF_CONFIG": tf_config([free_port()], 0)},
    )  # fmt: skip
    if control:
        # What the other run shows to be absent.
        assert "must be configured at program startup" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["[5, 6, 355, None]", *["[3]"] * 4]
