"""Configuration of the input pipeline."""

import dataclasses

from trainer.errors import ConfigError

KINDS = ("memory", "tfds", "array_record", "tfrecord")


@dataclasses.dataclass
class DataConfig:
    """What is read, and how it becomes model input."""

    train: str = ""
    """Source of training examples: `tfds:NAME/SPLIT`, `array_record:GLOB`,
    `tfrecord:GLOB` or `memory:MODULE:FUNCTION`."""

    validation: str = ""
    """Source of validation examples, same form; empty: no validation."""

    data_dir: str = "~/.cache/steadfast/data"
    """Where `tfds` data sets are prepared and found."""

    features: str = ""
    """`MODULE:FUNCTION` returning {name: tf.io feature spec}, how `array_record` and
    `tfrecord` records (serialised tf.train.Example) are parsed. tfds and memory
    sources know their own."""

    label: str = "label"
    """Feature that becomes `y`; empty: examples have none."""

    sample_weight: str = ""
    """Feature that becomes the sample weight; empty: none."""

    preprocess: str = ""
    """`MODULE:FUNCTION`, graph code, `{name: tensor}` of one example without label
    and sample weight -> model input. It also runs inside the served model."""

    augment: str = ""
    """`MODULE:FUNCTION`, graph code, `(model input, seed int32[2])` -> model input,
    training only; use `tf.image.stateless_*` and the like."""

    shuffle: bool = True
    """Read training examples in a seeded order that changes each epoch."""

    shuffle_buffer: int = 10_000
    """Examples held to shuffle a *streamed* source; random-access sources need none."""

    cache: bool = False
    """Keep parsed examples of random-access sources in memory."""

    prefetch: int = -1
    """Batches prepared ahead; -1 lets tf.data tune it."""

    def __post_init__(self) -> None:
        for field in ("train", "validation"):
            source = getattr(self, field)
            kind = source.partition(":")[0]
            if source and (kind not in KINDS or not source.partition(":")[2]):
                raise ConfigError(
                    f"data.{field}={source!r}: expected KIND:ADDRESS with KIND one of "
                    f"{', '.join(KINDS)}, such as tfds:digits/train"
                )
        for field in ("preprocess", "augment", "features"):
            value = getattr(self, field)
            if value and not all(value.partition(":")[::2]):
                raise ConfigError(f"data.{field}={value!r}: expected MODULE:FUNCTION")
        if self.sample_weight and self.sample_weight == self.label:
            raise ConfigError(f"data.sample_weight={self.sample_weight!r} is data.label too")
        if self.sample_weight and not self.label:
            raise ConfigError(
                f"data.sample_weight={self.sample_weight!r} weighs the loss of data.label: set it"
            )
        if self.shuffle_buffer < 1:
            raise ConfigError(f"data.shuffle_buffer={self.shuffle_buffer}: must be at least 1")
        if self.prefetch < -1:
            raise ConfigError(f"data.prefetch={self.prefetch}: must be -1 (tuned), 0 or more")
