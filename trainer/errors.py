"""Exit codes, and the errors that carry them.

Every command ends through `exit_code_of`: what a supervisor (Kubernetes'
`ExitCode` policy, `trainer.launch`, Slurm) does next depends on the number alone.
"""

from __future__ import annotations

OK = 0
BUG = 1
CONFIG = 2
GATE = 3
RETRY = 138
STOPPED = 143

# What a supervisor may start again; everything else is permanent.
RETRYABLE = frozenset({RETRY, STOPPED})


class SteadfastError(Exception):
    """An error whose message is one line for a person: what, which value, the fix."""

    code = BUG


class ConfigError(SteadfastError):
    """The configuration, TF_CONFIG or the command line is wrong."""

    code = CONFIG


class DataError(SteadfastError):
    """The data is missing, empty, corrupt or not what the configuration says."""

    code = CONFIG


class GateRefused(SteadfastError):
    """The model was trained, but is not good enough to be published."""

    code = GATE


class PeerLost(SteadfastError):
    """A peer died, hung or never came: the same command may be started again."""

    code = RETRY


class Stopped(SteadfastError):
    """The process was asked to stop, and saved its state first."""

    code = STOPPED


def exit_code_of(error: BaseException) -> int:
    """Returns the exit code for `error`; anything unknown is a bug (1)."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else BUG
    if isinstance(error, KeyboardInterrupt):
        return STOPPED
    return getattr(error, "code", BUG) if isinstance(error, SteadfastError) else BUG
