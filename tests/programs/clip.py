"""Prints how far one step moves a weight, with Keras' clipping and with ours.

Two replicas on one machine, gradients 3 and -2 before the sum, clipnorm 0.5, rate 1.
"""

from __future__ import annotations

from trainer import compat

compat.import_tensorflow()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from trainer import replica_step  # noqa: E402
from trainer.strategy import replica_id  # noqa: E402


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for ours in (False, True):
        with strategy.scope():
            model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(1.0, clipnorm=0.5), "mse")
            model.optimizer.build(model.trainable_variables)
            if ours:
                replica_step.prepare(model, clip_norm=None)
        kernel = model.trainable_variables[0]

        def step(model=model, kernel=kernel) -> None:
            gradient = tf.constant([[3.0 if replica_id() == 0 else -2.0]])
            model.optimizer.apply_gradients([(gradient, kernel)])

        before = kernel.numpy().item()
        tf.function(lambda step=step: strategy.run(step))()
        print(abs(kernel.numpy().item() - before))


if __name__ == "__main__":
    main()
