"""The configuration of a run: `Experiment` and its parts.

    config = Experiment(train=TrainConfig(global_batch_size=128, epochs=3))

A file in `configs/` has `get_config() -> Experiment`. Plain Python without TensorFlow, so
that mistakes are reported at once. No `from __future__ import annotations` here: the
command line reads the types of the fields.
"""

import dataclasses
import json
from typing import Any

from export.config import ExportConfig
from input_pipeline.config import DataConfig
from trainer.errors import ConfigError

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def _at_least(prefix: str, config: Any, **bounds: float) -> None:
    for name, bound in bounds.items():
        value = getattr(config, name)
        if value is not None and not value >= bound:
            raise ConfigError(f"{prefix}.{name}={value!r}: must be at least {bound}")


@dataclasses.dataclass
class ModelConfig:
    """Which model is trained."""

    builder: str = ""
    """`MODULE:FUNCTION` returning a compiled Keras model; imported only after the
    strategy exists."""

    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of the builder."""

    def __post_init__(self) -> None:
        if self.builder and not all(self.builder.partition(":")[::2]):
            raise ConfigError(f"model.builder={self.builder!r}: expected MODULE:FUNCTION")


@dataclasses.dataclass
class TrainConfig:
    """How the model is trained."""

    seed: int = 0
    """Seed of initial weights, data order, augmentation and dropout."""

    global_batch_size: int = 64
    """Examples of one step over all replicas."""

    epochs: int | None = None
    """Passes over the training data; give this or `steps`."""

    steps: int | None = None
    """Optimizer steps in all; give this or `epochs`."""

    steps_per_loop: int = 10
    """Steps run inside one graph call; callbacks, logs and backups happen between."""

    validate_every_epochs: int = 1
    """Epochs between validations; 0 validates only at the end."""

    precision: str = "float32"
    """`float32`, `mixed_bfloat16` or `mixed_float16` (Keras' dtype policies)."""

    clip_norm: float | None = None
    """Global norm that the gradient of the whole batch is clipped to."""

    class_weight: tuple[float, ...] = ()
    """Loss weight of each class, by index."""

    callbacks: str = ""
    """`MODULE:FUNCTION` returning a list of Keras callbacks."""

    def __post_init__(self) -> None:
        _at_least("train", self, seed=0, global_batch_size=1, epochs=1, steps=1)
        _at_least("train", self, steps_per_loop=1, validate_every_epochs=0)
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"train.clip_norm={self.clip_norm}: must be more than 0")
        if self.epochs is not None and self.steps is not None:
            raise ConfigError(
                f"train.epochs={self.epochs} and train.steps={self.steps}: give one of them"
            )
        if self.precision not in PRECISIONS:
            raise ConfigError(
                f"train.precision={self.precision!r}: must be one of {', '.join(PRECISIONS)}"
            )
        if self.callbacks and not all(self.callbacks.partition(":")[::2]):
            raise ConfigError(f"train.callbacks={self.callbacks!r}: expected MODULE:FUNCTION")


@dataclasses.dataclass
class BackupConfig:
    """When the state of the run is saved, and where."""

    every_steps: int | None = None
    """Steps between backups, rounded up to the end of a loop; None: each epoch."""

    keep: int = 2
    """Generations kept."""

    dir: str = ""
    """Where generations are kept; empty: RUN_DIR/backup."""

    def __post_init__(self) -> None:
        _at_least("backup", self, every_steps=1, keep=1)


@dataclasses.dataclass
class ClusterConfig:
    """What is expected of the cluster."""

    expected_workers: int | None = None
    """Workers that TF_CONFIG must describe; None accepts any number, also none."""

    collective: str = "auto"
    """Collective implementation: `auto`, `ring` (gRPC) or `nccl`."""

    startup_timeout_s: float = 600.0
    """Seconds to wait for all peers at the start."""

    heartbeat_timeout_s: float = 10.0
    """Seconds of silence after which a peer counts as lost."""

    max_restarts: int = 10
    """Restarts by `trainer.launch` before it gives up."""

    def __post_init__(self) -> None:
        _at_least("cluster", self, expected_workers=1, startup_timeout_s=1)
        _at_least("cluster", self, heartbeat_timeout_s=1, max_restarts=0)
        if self.collective not in ("auto", "ring", "nccl"):
            raise ConfigError(f"cluster.collective={self.collective!r}: must be auto, ring or nccl")


@dataclasses.dataclass
class MonitorConfig:
    """What is reported while the run goes on."""

    log_every_steps: int = 50
    """Steps between lines of metrics.jsonl, rounded up to the end of a loop."""

    price_per_worker_hour: float = 0.0
    """Price of one worker for one hour, for the cost in summary.json."""

    def __post_init__(self) -> None:
        _at_least("monitor", self, log_every_steps=1, price_per_worker_hour=0)


@dataclasses.dataclass
class Experiment:
    """A whole run. Each part is owned by the module that uses it."""

    name: str = "run"
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    backup: BackupConfig = dataclasses.field(default_factory=BackupConfig)
    cluster: ClusterConfig = dataclasses.field(default_factory=ClusterConfig)
    export: ExportConfig = dataclasses.field(default_factory=ExportConfig)
    monitor: MonitorConfig = dataclasses.field(default_factory=MonitorConfig)

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Checks every part again; call it after fields were assigned.

        Raises:
          ConfigError: names the first field that is wrong, its value and the fix.
        """
        if not self.name or "/" in self.name:
            raise ConfigError(f"name={self.name!r}: must be a plain name without '/'")
        for field in dataclasses.fields(self):
            part = getattr(self, field.name)
            if dataclasses.is_dataclass(part):
                part.__post_init__()  # type: ignore[union-attr]

    def require_runnable(self) -> None:
        """Checks that nothing a training run needs is missing.

        Raises:
          ConfigError: names the field that must be set.
        """
        for field, value in (
            ("model.builder", self.model.builder),
            ("data.train", self.data.train),
        ):
            if not value:
                raise ConfigError(f"{field} is not set; see configs/digits.py for an example")
        if self.train.epochs is None and self.train.steps is None:
            raise ConfigError("train.epochs and train.steps are not set: give one of them")

    def to_json(self) -> str:
        """Returns the resolved configuration as indented JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Experiment":
        """Builds the configuration whose `to_json` was read back as `values`."""
        parts: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            value = values[field.name]
            if isinstance(value, dict):
                part = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
                value = field.default_factory(**part)  # type: ignore[call-arg, misc, operator]
            parts[field.name] = value
        return cls(**parts)
