"""Learning rates from a configuration: a number, or warm-up and cosine decay.

    learning_rate(0.001)
    learning_rate({"peak": 0.1, "steps": 5000, "warmup_steps": 500})

Both are what a Keras optimizer accepts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from trainer.errors import ConfigError

_KEYS = ("peak", "steps", "warmup_steps", "final")


def learning_rate(value: float | Mapping[str, Any]) -> Any:
    """Returns a float, or a schedule over the optimizer's steps.

    Args:
      value: a number; or `peak` (reached after `warmup_steps`, linearly from 0) and
        `steps` (all steps, warm-up included, at whose end the rate is `final`);
        `warmup_steps` and `final` are 0 by default.

    Raises:
      ConfigError: a key is missing or unknown, or a value makes no sense.
    """
    field = "model.kwargs.learning_rate"
    if not isinstance(value, Mapping):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ConfigError(f"{field}={value!r}: must be more than 0, or a dict with {_KEYS}")
        return float(value)
    for key in value:
        if key not in _KEYS:
            raise ConfigError(f"{field}.{key}: no such key; there are {', '.join(_KEYS)}")
    for key in ("peak", "steps"):
        if not value.get(key, 0) > 0:
            raise ConfigError(f"{field}.{key}={value.get(key)!r}: must be more than 0")
    peak, steps = float(value["peak"]), int(value["steps"])
    warmup, final = int(value.get("warmup_steps", 0)), float(value.get("final", 0.0))
    if not 0 <= warmup < steps:
        raise ConfigError(f"{field}.warmup_steps={warmup}: must be from 0 to steps-1={steps - 1}")
    if not 0 <= final <= peak:
        raise ConfigError(f"{field}.final={final}: must be from 0 to peak={peak}")
    if not warmup:
        return keras.optimizers.schedules.CosineDecay(peak, steps, alpha=final / peak)
    return keras.optimizers.schedules.CosineDecay(
        0.0,
        steps - warmup,
        alpha=final / peak,
        warmup_target=peak,
        warmup_steps=warmup,
    )
