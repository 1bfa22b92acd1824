"""Loads what the configuration names as `MODULE:FUNCTION`.

    build = load("trainer.models.cnn:build", field="model.builder")

Only after the strategy exists: user code may create tensors when it is imported, and a
multi-worker strategy must come first.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from trainer.errors import ConfigError


def load(address: str, *, field: str) -> Callable[..., Any]:
    """Imports MODULE and returns its FUNCTION.

    Raises:
      ConfigError: names `field` where there is no such module or function. An error
        raised inside the module is the user's and passes through.
    """
    module_name, _, function_name = address.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise ConfigError(
                f"{field}={address!r}: there is no module {error.name!r}; start in its folder, "
                "install it, or correct the name"
            ) from None
        raise
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(f"{field}={address!r}: {module_name} has no function {function_name!r}")
    return function
