"""Rank 0's port: listen at the configured address, and reserve the port for JAX's coordinator."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from typing import NamedTuple

from ._environment import Start

NOT_LOCAL = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of `bind` for an address that no interface of this host has."""


class ListeningPort(NamedTuple):
    listeners: list[socket.socket]
    everywhere: bool
    """Whether the sockets listen on all interfaces, because no interface has the address."""

    @property
    def loopback(self) -> bool:
        return not self.everywhere and all(loopback(listener.getsockname()[0]) for listener in self.listeners)

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()


def listen(start: Start, patience: float) -> ListeningPort:
    """Open the sockets at rank 0's address, or raise OSError."""
    # For up to `patience` seconds, because a process that is ending may still hold the port.
    deadline = time.monotonic() + patience
    address_infos = socket.getaddrinfo(start.host, start.port, type=socket.SOCK_STREAM)
    addresses = list(
        dict.fromkeys((family, socket_address) for family, _, _, _, socket_address in address_infos)
    )
    while True:
        try:
            return _open(addresses, start.port)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _open(addresses: list[tuple], port: int) -> ListeningPort:
    with contextlib.ExitStack() as opened:
        listeners = []
        for family, socket_address in addresses:
            try:
                listener = socket.create_server(socket_address, family=family, backlog=1024)
            except OSError as error:
                if error.errno not in NOT_LOCAL:
                    raise
                continue
            listeners.append(opened.enter_context(listener))
        listening = ListeningPort(listeners or [_everywhere(port)], not listeners)
        for listener in listening.listeners:
            listener.setblocking(False)
        opened.pop_all()
    return listening


def _everywhere(port: int) -> socket.socket:
    if not has_ipv6():
        return socket.create_server(("", port), backlog=1024)
    both = socket.has_dualstack_ipv6()  # ranks may connect over IPv4, too
    return socket.create_server(("::", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=both)


def has_ipv6() -> bool:
    # `socket.has_ipv6` reports how Python was built, and many containers have no IPv6.
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True


def loopback(host: str) -> bool:
    return host.startswith("127.") or host in ("localhost", "::1")


def keep(port: ListeningPort) -> contextlib.ExitStack | None:
    # The listeners close before the coordinator binds; in between a different program could take the port.
    # The reserving sockets do not listen; they and the coordinator (gRPC) both set SO_REUSEPORT.
    if not hasattr(socket, "SO_REUSEPORT"):
        return None
    with contextlib.ExitStack() as reservations:
        try:
            for listener in port.listeners:
                reservation = reservations.enter_context(socket.socket(listener.family, socket.SOCK_STREAM))
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                reservation.bind(listener.getsockname())
        except OSError:
            return None
        return reservations.pop_all()
