"""Trains one task of the cluster that TF_CONFIG describes, and exports the model.

  python -m trainer.task --config=configs/digits.py --run_dir=runs/digits

Without TF_CONFIG the whole run is this process. Start the same command again after an
exit code of 138 or 143: it continues from the last backup.

Exit codes: 0 done, 1 a bug, 2 configuration or data is wrong, 3 the quality gate refused
the model, 138 a peer was lost, 143 asked to stop (the state was saved).
"""

from __future__ import annotations

import json
import logging as python_logging
import os
import sys
import traceback
from typing import Any

from trainer import errors
from trainer.cluster import Cluster
from trainer.command_line import parse


def main(argv: list[str]) -> int:
    """Runs the task and returns its exit code."""
    try:
        command = parse(argv, doc=__doc__, define=_define_flags)
        if not command.flags.run_dir:
            raise errors.ConfigError("--run_dir is not set: name a directory for this run's files")
        config = command.experiment
        config.require_runnable()
        cluster = Cluster.from_env(os.environ, config.cluster)
        cluster.require_training_role()
        # TensorFlow would wait for parameter servers and evaluators if it saw them.
        os.environ["TF_CONFIG"] = json.dumps(cluster.tf_config())
        if proxies := cluster.bypass_proxies(os.environ):
            _say(proxies)
    except errors.SteadfastError as error:
        _say(f"error: {error}")
        return error.code
    from trainer import run

    _log_quietly()
    try:
        return run.run(config, cluster, command.flags.run_dir)
    except BaseException as error:
        return _end(error, cluster)


def _define_flags(values: Any) -> None:
    from absl import flags

    flags.DEFINE_string("run_dir", None, "Directory of this run's files.", flag_values=values)


def _log_quietly() -> None:
    """Shows our own log lines and hides what libraries report at the level of INFO."""
    from absl import logging

    logging.set_verbosity(logging.WARNING)
    logging.get_absl_handler().setFormatter(python_logging.Formatter("%(levelname)s %(message)s"))
    for name in ("tensorflow", "absl"):
        python_logging.getLogger(name).setLevel(python_logging.WARNING)


def _end(error: BaseException, cluster: Cluster) -> int:
    """Says what happened in one line and returns, or leaves with, the exit code."""
    from trainer.strategy import as_peer_lost

    known = as_peer_lost(error, cluster)
    if isinstance(known, errors.SteadfastError):
        _say(f"{'stopped' if known.code == errors.STOPPED else 'error'}: {known}")
    elif not isinstance(known, SystemExit):
        traceback.print_exception(error)
    code = errors.exit_code_of(known)
    if cluster.distributed:
        # A normal exit would wait in TensorFlow's shutdown barrier for peers that are gone.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
