"""Articles of clothing with ResNet-20, shifted and mirrored in training.

  python -m trainer.launch --workers=2 --config=configs/fashion_resnet20.py \
      --run_dir=runs/fashion_resnet20

Test accuracy: 0.940. Time: 34 min with two workers on two cores that were shared with other
work.

The learning rate falls to 0 over exactly these epochs. To train for another time, change
both: `--config.train.epochs=E --config.model.kwargs.learning_rate.steps=$((60000 * E / 128))`.
The model is exported below `exports/fashion_resnet20` of the current directory.
"""

import math

from export.config import ExportConfig
from input_pipeline.config import DataConfig
from trainer.config import Experiment, ModelConfig, TrainConfig

EPOCHS = 15
BATCH = 128
STEPS_PER_EPOCH = 60_000 / BATCH


def get_config() -> Experiment:
    """Returns the configuration."""
    return Experiment(
        name="fashion_resnet20",
        model=ModelConfig(
            builder="trainer.models.resnet:build",
            kwargs={
                "depth": 20,
                "input_shape": (28, 28, 1),
                "num_classes": 10,
                "learning_rate": {
                    "peak": 0.1,
                    "steps": math.ceil(EPOCHS * STEPS_PER_EPOCH),
                    "warmup_steps": int(STEPS_PER_EPOCH),
                },
                "l2": 1e-4,
            },
        ),
        data=DataConfig(
            train="tfds:fashion_mnist/train",
            validation="tfds:fashion_mnist/test",
            preprocess="input_pipeline.vision:scale_255",
            augment="input_pipeline.vision:shift_and_flip",
            cache=True,
        ),
        train=TrainConfig(global_batch_size=BATCH, epochs=EPOCHS, steps_per_loop=26),
        export=ExportConfig(dir="exports/fashion_resnet20"),
    )
