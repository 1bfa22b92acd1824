"""Articles of clothing: 60,000 + 10,000 images of 28x28 pixels, with a small CNN.

  python -m trainer.launch --workers=2 --config=configs/fashion_mnist.py \
      --run_dir=runs/fashion_mnist

Test accuracy: 0.923. Time: 6 min with two workers on two cores.

The learning rate falls to 0 over exactly these epochs. To train for another time, change
both: `--config.train.epochs=E --config.model.kwargs.learning_rate.steps=$((60000 * E / 128))`.
The model is exported below `exports/fashion_mnist` of the current directory.
"""

import math

from export.config import ExportConfig
from input_pipeline.config import DataConfig
from trainer.config import Experiment, ModelConfig, TrainConfig

EPOCHS = 6
BATCH = 128
STEPS_PER_EPOCH = 60_000 / BATCH


def get_config() -> Experiment:
    """Returns the configuration."""
    return Experiment(
        name="fashion_mnist",
        model=ModelConfig(
            builder="trainer.models.cnn:build",
            kwargs={
                "input_shape": (28, 28, 1),
                "num_classes": 10,
                "learning_rate": {
                    "peak": 0.002,
                    "steps": math.ceil(EPOCHS * STEPS_PER_EPOCH),
                    "warmup_steps": int(STEPS_PER_EPOCH / 2),
                },
                "filters": (32, 64),
                "dense_units": 128,
                "batch_norm": True,
                "dropout": 0.3,
            },
        ),
        data=DataConfig(
            train="tfds:fashion_mnist/train",
            validation="tfds:fashion_mnist/test",
            preprocess="input_pipeline.vision:scale_255",
            cache=True,
        ),
        train=TrainConfig(global_batch_size=BATCH, epochs=EPOCHS, steps_per_loop=26),
        export=ExportConfig(dir="exports/fashion_mnist"),
    )
