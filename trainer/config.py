"""The configuration of a run: `Experiment`, its parts, and how a command reads it.

    experiment = parse(["prog", "--config=configs/digits.py", "--config.train.epochs=3"])

A file in `configs/` has `get_config() -> Experiment`. Everything here is plain Python:
no TensorFlow, so that mistakes are reported at once.
"""

import dataclasses
import difflib
import json
import os
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


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """What a command was asked to do."""

    experiment: Experiment
    flags: Any
    """absl FlagValues: the command's own flags as attributes."""

    config_args: tuple[str, ...]
    """The `--config…` arguments as given, to pass on to a child process."""


def parse(argv: list[str], *, doc: str, define: Any = None) -> CommandLine:
    """Reads `--config=FILE`, `--config.a.b=value` and the command's own flags.

    Args:
      argv: the command line, program name first.
      doc: printed by `--help`, before the flags.
      define: called with the FlagValues to define the command's own flags.

    Raises:
      ConfigError: the file, a key or a value is wrong; a key is answered with the nearest one.
      SystemExit: after `--help`, code 0.
    """
    from absl import flags
    from ml_collections import config_flags

    values = flags.FlagValues()
    if define:
        define(values)
    argv = [argv[0], *map(_find_config, _joined(argv[1:]))]
    if any(arg in ("--help", "-h", "--helpfull", "-help") for arg in argv[1:]):
        flags.DEFINE_string("config", None, "Configuration file.", flag_values=values)
        print(f"{doc.strip()}\n\nFlags:\n{values.main_module_help() or values.get_help()}")
        print("  --config.a.b=VALUE: override a field of the configuration file; none unsets it.")
        raise SystemExit(0)
    path = _config_path(argv)
    if not os.path.isfile(path):
        raise ConfigError(f"--config={path}: no such file; configs/digits.py is one that is there")
    given = argv
    argv, unset = _without_none(given)
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
    try:
        rest = values(argv)
        experiment = values.config
    except KeyError as error:
        raise ConfigError(_unknown_key(argv, str(error.args[0]))) from None
    except (flags.Error, TypeError, ValueError) as error:
        raise ConfigError(" ".join(str(error).split())) from None
    if len(rest) > 1:
        raise ConfigError(f"unexpected argument {rest[1]!r}; flags are written --name=value")
    if not isinstance(experiment, Experiment):
        raise ConfigError(
            f"--config: get_config() returned {type(experiment).__name__}, not Experiment"
        )
    experiment.validate()
    config_args = tuple(
        a for a in given[1:] if a.lstrip("-").split("=")[0].split(".")[0] == "config"
    )
    return CommandLine(experiment, values, config_args)


def _joined(args: list[str]) -> list[str]:
    """Writes `--config… VALUE` as `--config…=VALUE`, so that one form is left."""
    joined: list[str] = []
    for arg in args:
        before = joined[-1] if joined else ""
        waits = before.lstrip("-").split(".")[0] == "config" and before[:1] == "-"
        if waits and "=" not in before and not arg.startswith("-"):
            joined[-1] = f"{before}={arg}"
        else:
            joined.append(arg)
    return joined


def _find_config(arg: str) -> str:
    """Lets `configs/NAME.py` mean the installed one where the file is not here."""
    name, equals, path = arg.partition("=")
    if name in ("--config", "-config") and path.startswith("configs/") and not os.path.exists(path):
        installed = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), path)
        if os.path.exists(installed):
            return name + equals + installed
    return arg


def _without_none(argv: list[str]) -> tuple[list[str], list[str]]:
    """Takes out `--config.a.b=none` of fields that may be None, which flags cannot express."""
    optional = {
        f"{part.name}.{field.name}"
        for part in dataclasses.fields(Experiment)
        if dataclasses.is_dataclass(part.type)
        for field in dataclasses.fields(part.type)
        if "None" in str(field.type)
    }
    kept, unset = [], []
    for arg in argv:
        key, _, value = arg.lstrip("-").removeprefix("config.").partition("=")
        if value in ("none", "None") and key in optional:
            unset.append(key)
        else:
            kept.append(arg)
    return kept, unset


def _config_path(argv: list[str]) -> str:
    """Returns the value of `--config`.

    Raises:
      ConfigError: it is not there.
    """
    for arg in argv[1:]:
        name, _, value = arg.partition("=")
        if name in ("--config", "-config"):
            return value.partition(":")[0]
    raise ConfigError("--config is not set: name a configuration, such as configs/digits.py")


def _unknown_key(argv: list[str], fallback: str) -> str:
    """Says which `--config.…` key does not exist, and the nearest one that does."""
    known = sorted(_keys(Experiment()))
    for arg in argv[1:]:
        key = arg.lstrip("-").split("=")[0]
        if not key.startswith("config."):
            continue
        key = key.removeprefix("config.")
        if key == f"model.kwargs.{fallback}":
            return f"--config.{key}: model.kwargs of {_config_path(argv)} has no such argument"
        if key not in known and not key.startswith("model.kwargs."):
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = (
                f"; did you mean --config.{near[0]}?" if near else f"; there are {', '.join(known)}"
            )
            return f"--config.{key}: no such field{hint}"
    return fallback


def _keys(part: Any, prefix: str = "") -> list[str]:
    keys = []
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        name = prefix + field.name
        keys += _keys(value, name + ".") if dataclasses.is_dataclass(value) else [name]
    return keys
