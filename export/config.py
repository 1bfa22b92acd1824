"""Configuration of the export."""

import dataclasses
import operator
import re

from trainer.errors import ConfigError

_COMPARISONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_THRESHOLD = re.compile(r"^\s*(\w+)\s*(>=|<=|>|<)\s*([-+0-9.eE]+)\s*$")


@dataclasses.dataclass
class ExportConfig:
    """Where and under which conditions the trained model is published."""

    dir: str = ""
    """Base path of the model, `…/NAME`; TF Serving watches it. Versions are integer
    directories below it. Empty: nothing is exported."""

    gate: tuple[str, ...] = ()
    """Thresholds that the final validation metrics must meet, such as
    `("val_accuracy>=0.97",)`; otherwise nothing is published and the exit code is 3."""

    keep: int = 5
    """Versions kept under `dir`; 0 keeps all."""

    tolerance: float = 1e-5
    """Largest difference allowed between served and trained answers, relative to the
    largest absolute answer (at least 1). A model that computes in bfloat16 or float16 is
    allowed one rounding of that format, 2^-7 or 2^-10, where this is less."""

    def __post_init__(self) -> None:
        for threshold in self.gate:
            parse_threshold(threshold)
        if self.keep < 0:
            raise ConfigError(f"export.keep={self.keep}: must be 0 (all) or more")
        if self.tolerance < 0:
            raise ConfigError(f"export.tolerance={self.tolerance}: must not be negative")


def parse_threshold(text: str) -> tuple[str, str, float]:
    """Splits `"val_accuracy>=0.97"` into metric, comparison and bound.

    Raises:
      ConfigError: the text is not of that form.
    """
    match = _THRESHOLD.match(text)
    if not match:
        raise ConfigError(f"export.gate={text!r}: expected METRIC>=NUMBER (or <=, >, <)")
    try:
        return match[1], match[2], float(match[3])
    except ValueError:
        raise ConfigError(f"export.gate={text!r}: {match[3]!r} is not a number") from None


def failed_thresholds(gate: tuple[str, ...], metrics: dict[str, float]) -> list[str]:
    """Returns one line for each threshold of `gate` that `metrics` do not meet."""
    failed = []
    for text in gate:
        name, comparison, bound = parse_threshold(text)
        if name not in metrics:
            failed.append(f"{text}: no metric {name!r}, there are {', '.join(sorted(metrics))}")
        elif not _COMPARISONS[comparison](metrics[name], bound):
            failed.append(f"{text}: {name} is {metrics[name]:.6g}")
    return failed
