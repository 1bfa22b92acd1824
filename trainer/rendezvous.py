"""Waits until every peer is there, before TensorFlow is asked to.

    wait_for_peers(cluster, timeout_s=600)

TensorFlow waits for a missing peer for ever, in silence, deaf to signals and with
Python's interpreter locked. So each task first listens on its own address by itself and
tries the others'; only when all answer does it make way for TensorFlow's server. A task
that comes late, or whose name resolves late, is waited for and named.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from trainer import addresses
from trainer.errors import PeerLost

if TYPE_CHECKING:
    from trainer.cluster import Cluster

_REPORT_EVERY_S = 15.0
_PROBE_EVERY_S = 0.2
_CONNECT_S = 1.0


def wait_for_peers(
    cluster: Cluster, timeout_s: float, say: Callable[[str], None] | None = None
) -> None:
    """Returns once every other task of the cluster accepts connections.

    Args:
      cluster: the tasks.
      timeout_s: seconds to wait.
      say: called with a line every 15 s; prints to stderr by default.

    Raises:
      PeerLost: some are not there in time, or this task's own port is taken; names them.
    """
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    start = reported = time.monotonic()
    with _listening(cluster.address):
        while absent := cluster.unreachable(_CONNECT_S):
            now = time.monotonic()
            names = ", ".join(absent)
            if now - start >= timeout_s:
                raise PeerLost(
                    f"gave up after cluster.startup_timeout_s={timeout_s:g}; not answering: "
                    f"{names}; start this task again once they are up"
                )
            if now - reported >= _REPORT_EVERY_S:
                reported = now
                say(f"waiting for peers since {now - start:.0f} s; not answering: {names}")
            time.sleep(_PROBE_EVERY_S)


@contextlib.contextmanager
def _listening(address: str) -> Iterator[None]:
    """Accepts and drops connections to this task's own address."""
    host, port = addresses.host(address), int(address.rpartition(":")[2])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            _bind(server, host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise PeerLost(
                f"port {port} of {address} is in use on this machine: stop what holds it, or "
                "start this task again when it is free"
            ) from None
        server.listen(128)
        threading.Thread(target=_drop_connections, args=[server], daemon=True).start()
        try:
            yield
        finally:
            # Wakes the thread; closing alone would leave it waiting.
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)


def _bind(server: socket.socket, host: str, port: int) -> None:
    try:
        server.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        # The name may belong to a service in front of this machine, or not resolve yet.
        server.bind(("", port))


def _drop_connections(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            server.accept()[0].close()


@contextlib.contextmanager
def ends_in_time(seconds: float) -> Iterator[None]:
    """Kills this process if the block takes longer.

    For the moment after `wait_for_peers`, when TensorFlow connects: a peer that dies just
    then would be waited for in a call that no thread of this process can end.
    """
    code = (
        "import os, select, signal, sys\n"
        f"if not select.select([sys.stdin], [], [], {seconds})[0]:\n"
        f"    print('no connection to the peers within {seconds:g} s: a peer left at the start', "
        "file=sys.stderr)\n"
        "    os.kill(os.getppid(), signal.SIGKILL)\n"
    )
    with subprocess.Popen([sys.executable, "-S", "-E", "-c", code], stdin=subprocess.PIPE) as guard:
        try:
            yield
        finally:
            assert guard.stdin
            guard.stdin.close()
