"""Rank 0's port: listening at the address that was given, and keeping it for JAX's coordinator.

torch's TCPStore and JAX's coordinator listen on all interfaces of the host. Here that is the exception, for
an address that this host does not have itself, because a router or a container's network translates it.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from typing import NamedTuple

from ._environment import Start

NOT_LOCAL = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""What binding says of an address that is not this host's."""


class ListeningPort(NamedTuple):
    """The sockets that listen, one for each address that the name stands for."""

    listeners: list[socket.socket]
    everywhere: bool
    """Whether they listen on all interfaces, because the address is not this host's."""

    @property
    def loopback(self) -> bool:
        return not self.everywhere and all(loopback(listener.getsockname()[0]) for listener in self.listeners)

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()


def listen(start: Start, patience: float) -> ListeningPort:
    """The sockets at rank 0's address.

    Waits up to `patience` seconds for the port, which a process that is ending may still have.

    Raises:
      OSError: the name is unknown (`socket.gaierror`), or the port is taken.
    """
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
    both = socket.has_dualstack_ipv6()  # ranks may come by IPv4 as well
    return socket.create_server(("::", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=both)


def has_ipv6() -> bool:
    """Whether this host has IPv6. Many containers lack it; `socket.has_ipv6` tells how Python was built."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True


def loopback(host: str) -> bool:
    return host.startswith("127.") or host in ("localhost", "::1")


def keep(port: ListeningPort) -> contextlib.ExitStack | None:
    """Second sockets on the port, so that no other program takes it before JAX's coordinator.

    They do not listen, and both they and the coordinator allow the port to be shared. None if that fails.
    """
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
