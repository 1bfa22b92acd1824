"""`HOST:PORT` addresses: their form, whether anybody answers, and the proxies around them.

    check("worker-0.train.svc:2222", "TF_CONFIG: cluster.worker[0]")
    accepts_connections("[::1]:2222", timeout_s=1.0)

An IPv6 host stands in brackets.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, MutableMapping
from typing import Any

from trainer.errors import ConfigError

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def check(address: Any, where: str) -> None:
    """Checks that `address` is `HOST:PORT`.

    Args:
      address: any value read from JSON.
      where: begins the message, such as `TF_CONFIG: cluster.worker[0]`.

    Raises:
      ConfigError: it is not.
    """
    problem = _problem(address)
    if problem:
        raise ConfigError(f"{where}={address!r}: {problem}")


def _problem(address: Any) -> str | None:
    if not isinstance(address, str):
        return "must be text, HOST:PORT"
    if "://" in address:
        return f"must be HOST:PORT without {address.split('://')[0]}://"
    name, colon, port = address.rpartition(":")
    bracketed = name.startswith("[") and name.endswith("]") and ":" in name
    if ":" in name and not bracketed:
        return "must be HOST:PORT; write an IPv6 address in brackets, [::1]:2222"
    if not colon or not name or any(c.isspace() or c in "/,@" for c in address):
        return "must be HOST:PORT, such as worker-0:2222"
    if not (port.isascii() and port.isdecimal() and 1 <= int(port[:9]) <= 65535):
        return f"port {port!r} must be a number from 1 to 65535"
    return None


def host(address: str) -> str:
    """Returns the host of a checked address, IPv6 without brackets."""
    return address.rpartition(":")[0].strip("[]")


def accepts_connections(address: str, timeout_s: float) -> bool:
    """Whether a TCP connection to a checked address opens within `timeout_s` seconds."""
    try:
        port = int(address.rpartition(":")[2])
        socket.create_connection((host(address), port), timeout=timeout_s).close()
    except (OSError, UnicodeError):
        # UnicodeError: a name that cannot be a host name, such as a label over 63 letters.
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Returns `count` different TCP ports of 127.0.0.1 that are free now.

    They are held all at once, so that none is given twice; somebody else may still take
    one before it is used.
    """
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def bypass_proxies(hosts: Iterable[str], environ: MutableMapping[str, str]) -> str | None:
    """Adds `hosts` and this machine's names to `no_proxy` if a proxy is set.

    Returns:
      A line for the log, or None if there was nothing to change.
    """
    proxies = sorted(
        name
        for name, value in environ.items()
        if value and name.lower().endswith("_proxy") and not name.lower().startswith("no_")
    )
    if not proxies:
        return None
    exempt = dict.fromkeys(
        entry
        for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy")
        for entry in (e.strip() for e in environ.get(name, "").split(","))
        if entry
    )
    wanted = list(dict.fromkeys([*_LOCAL_HOSTS, *hosts]))
    changed = False
    # gRPC reads no_grpc_proxy in place of no_proxy where it is set; others read NO_PROXY.
    names = ["no_proxy", "NO_PROXY"] + ["no_grpc_proxy"] * ("no_grpc_proxy" in environ)
    for name in names:
        value = ",".join(dict.fromkeys([*exempt, *wanted]))
        present = {entry.strip() for entry in environ.get(name, "").split(",")}
        if not present.issuperset(wanted):
            environ[name] = value
            changed = True
    if not changed:
        return None
    return f"{', '.join(proxies)} set: added {', '.join(wanted)} to no_proxy"
