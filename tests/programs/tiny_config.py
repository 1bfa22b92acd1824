"""The configuration of `tiny.py`."""

from input_pipeline.config import DataConfig
from trainer.config import BackupConfig, ClusterConfig, Experiment, ModelConfig, TrainConfig


def get_config() -> Experiment:
    """Returns the configuration: 100 examples in batches of 24, 4 or 5 steps an epoch."""
    return Experiment(
        name="tiny",
        model=ModelConfig(builder="tests.programs.tiny:build"),
        data=DataConfig(
            train="memory:tests.programs.tiny:data",
            validation="memory:tests.programs.tiny:validation",
            preprocess="tests.programs.tiny:scale",
            augment="tests.programs.tiny:jitter",
        ),
        train=TrainConfig(global_batch_size=24, epochs=3, steps_per_loop=2),
        backup=BackupConfig(keep=100),
        cluster=ClusterConfig(startup_timeout_s=120),
    )
