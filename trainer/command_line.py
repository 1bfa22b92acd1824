"""How a command reads its configuration: a file, and typed overrides.

    command = parse(["prog", "--config=configs/digits.py", "--config.train.epochs=3"], doc="…")
    command.experiment.train.epochs          # 3

Plain Python without TensorFlow: `--help` and mistakes are answered at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from typing import Any

from trainer.config import Experiment
from trainer.errors import ConfigError


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
    own = list(values)
    if define:
        define(values)
    argv = [argv[0], *map(_find_config, _joined(argv[1:]))]
    if any(arg in ("--help", "-h", "--helpfull", "-help") for arg in argv[1:]):
        lines = ["--config=FILE: configuration file, such as configs/digits.py."]
        lines += ["--config.a.b=VALUE: override a field of it; `none` unsets it."]
        lines += [f"--{name}: {values[name].help}" for name in sorted(set(values) - set(own))]
        print(f"{doc.strip()}\n\nFlags:\n  " + "\n  ".join(lines))
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
    for key in unset:
        part, _, name = key.rpartition(".")
        setattr(getattr(experiment, part), name, None)
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
