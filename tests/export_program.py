"""What the tests of the export run in a process of their own.

python -m tests.export_program export BASE      exports the CNN
python -m tests.export_program mirrored BASE    after a step on two virtual CPUs
python -m tests.export_program workers BASE     after a step on all tasks of TF_CONFIG; the
                                                chief exports, the other waits, idle
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any

from trainer import compat

tf = compat.import_tensorflow()

import numpy as np  # noqa: E402

from export import saved_model  # noqa: E402
from export.config import ExportConfig  # noqa: E402
from tests import export_cases  # noqa: E402


def main(mode: str, base: str) -> None:
    strategy = None
    if mode == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    elif mode == "workers":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope() if strategy else contextlib.nullcontext():
        case = export_cases.cnn()
    if strategy:
        train_step(strategy, case)
    done = base + ".done"
    if strategy is None or is_chief():
        result = saved_model.export(
            case.model, ExportConfig(dir=base), metrics={}, **case.arguments()
        )
        inputs = export_cases.scale_image({"image": case.golden["image"]})
        np.save(base + ".npy", case.model(inputs, training=False).numpy())
        print(json.dumps([result.version, result.max_difference]), flush=True)
        open(done, "w").close()
    while not os.path.exists(done):
        time.sleep(0.05)
    # Leaving through TensorFlow would wait for the peer.
    os._exit(0)


def train_step(strategy: Any, case: export_cases.Case) -> None:
    """One step on every replica, so that metrics and seed generators hold something."""
    images = export_cases.scale_image({"image": case.golden["image"]})
    labels = tf.range(len(images)) % 10
    with strategy.scope():
        compat.build(case.model, (images, labels))
    step = tf.function(lambda: strategy.run(case.model.train_step, args=((images, labels),)))
    step()


def is_chief() -> bool:
    return json.loads(os.environ.get("TF_CONFIG") or '{"task": {"index": 0}}')["task"]["index"] == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
