"""What the reference classifiers share: the output layer and how they are compiled.

    model = keras.Model(inputs, logits(x, num_classes))
    return compile_classifier(model, keras.optimizers.Adam(0.001))

Outputs are logits; their softmax is the probability of each class.
"""

from __future__ import annotations

from typing import Any

import keras


def logits(x: Any, num_classes: int) -> Any:
    """Returns float32 [N, num_classes] from x [N, F] of any float type.

    Always float32, so that mixed precision neither rounds the loss nor what is served.
    """
    return keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)


def compile_classifier(model: keras.Model, optimizer: Any) -> keras.Model:
    """Compiles `model` for integer labels [N] with cross-entropy and `accuracy`.

    XLA is off: it fails under several replicas, and is not faster on CPUs.
    """
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    return model
