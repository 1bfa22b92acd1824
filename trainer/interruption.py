"""Being asked to stop: SIGTERM or SIGINT raises a flag, and the loop acts on it.

    stop = StopRequest.install()             # after the strategy exists
    if stop.requested: ...

A handler set before a multi-worker strategy is created never runs: TensorFlow takes
SIGTERM for itself then.
"""

from __future__ import annotations

import signal
from types import FrameType


class StopRequest:
    """Whether this process was asked to stop."""

    def __init__(self) -> None:
        self.requested = False
        self.signal_name = ""

    @classmethod
    def install(cls) -> StopRequest:
        """Handles SIGTERM and SIGINT from now on; a second one changes nothing."""
        request = cls()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, request._handle)
        return request

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self.signal_name = signal.Signals(number).name
