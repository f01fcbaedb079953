"""Every rank says hello to rank 0, and rank 0 gives all of them one answer: go, or what is wrong.

jax.distributed ends a process with a signal if a port is taken, a peer is missing or two processes have the
same rank, and does not notice a rank that was started for another world size. So the ranks meet here before
it starts, over one connection each to the address that JAX's coordinator has a moment later. torch's
counterpart is the TCPStore of its env:// rendezvous, which waits until a timeout and then names no rank.

The protocol is one line of JSON each way. Whatever else connects (a port scanner, a browser, a program that
sends nothing) is neither counted nor answered.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import socket
import time
from importlib import metadata
from typing import Any, NamedTuple, TypeAlias

from ..errors import DistributedError
from ._environment import Start
from .exchange import ranks_text

LONGEST = 65_536
"""Bytes of a line, at most. Whatever sends more is not a rank."""
LATE = 3.0
"""Seconds for which rank 0 goes on listening when it knows of an error, so that late ranks get it too."""

Line: TypeAlias = "dict[str, Any]"
"""A line of the protocol. It may come from anything that connects, so nothing is known of its values."""

_log = logging.getLogger("jaxpar")


class Meeting(NamedTuple):
    """What the ranks agreed on: the number of hosts, and rank 0's hold on the port."""

    hosts: int
    hold: socket.socket | None


def hello(start: Start) -> Line:
    """What a rank says about itself."""
    return {
        **versions(),
        "rank": start.rank,
        "world": start.size,
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }


def versions() -> dict[str, str]:
    """Those that ranks must have in common."""
    try:
        jaxpar = metadata.version("jaxpar")
    except metadata.PackageNotFoundError:
        jaxpar = "unknown"
    return {"jaxpar": jaxpar, "jax": metadata.version("jax"), "jaxlib": metadata.version("jaxlib")}


def meet(start: Start, timeout: float, mine: Line | None = None) -> Meeting:
    """Waits until all ranks are there.

    Raises:
      DistributedError: some did not come within `timeout` seconds, or they do not fit together. Every rank
        that came raises the same text.
    """
    mine = mine or hello(start)
    return _Host(start, mine, timeout).meet() if start.rank == 0 else _guest(start, mine, timeout)


# ------------------------------------------------------------------------------------------- rank 0


class _Host:
    """Rank 0, which listens to all others at once, in one thread."""

    def __init__(self, start: Start, mine: Line, timeout: float):
        self.start, self.timeout = start, timeout
        self.deadline = time.monotonic() + timeout
        self.joined: dict[int, Line] = {0: mine}
        self.connections: dict[int, socket.socket] = {}
        self.heard: dict[socket.socket, bytes] = {}
        self.selector = selectors.DefaultSelector()
        self.listener = listen(start, mine, min(timeout, 2.0))

    def meet(self) -> Meeting:
        hold = None
        try:
            problem = self._wait()
            if not problem:
                hold = keep(self.listener)  # before the answer, on which the others look for the coordinator
            hosts = len({one["host"] for one in self.joined.values()})
            self._answer(
                {"jaxpar": "error", "text": problem} if problem else {"jaxpar": "go", "hosts": hosts}
            )
            if problem:
                raise DistributedError(problem)
            return Meeting(hosts, hold)
        finally:
            for open_socket in [self.listener, *self.heard, *self.connections.values()]:
                open_socket.close()
            self.selector.close()

    def _wait(self) -> str:
        """Waits until all ranks are there or the time is over; returns the problem, if there is one."""
        self.selector.register(self.listener, selectors.EVENT_READ)
        problem, remind = "", time.monotonic() + 15
        while len(self.joined) < self.start.size and time.monotonic() < self.deadline:
            for key, _ in self.selector.select(min(1.0, max(0.01, self.deadline - time.monotonic()))):
                found = self._accept() if key.fileobj is self.listener else self._hear(key.fileobj)
                if found and not problem:
                    # Raised at once, it would reach only the ranks that are here already.
                    problem, self.deadline = found, min(self.deadline, time.monotonic() + LATE)
            if time.monotonic() > remind:
                remind += 60
                _log.warning("rank 0 at %s waits for %s.", self.start.address, ranks_text(self._missing()))
        return problem or self._absent()

    def _missing(self) -> list[int]:
        return [rank for rank in range(self.start.size) if rank not in self.joined]

    def _absent(self) -> str:
        if not self._missing():
            return ""
        return (
            f"init_process_group: {ranks_text(self._missing())} of {self.start.size} did not come to rank 0 "
            f"at {self.start.address} within {self.timeout:g} s; {ranks_text(sorted(self.joined))} did. Look "
            "at their output; if they run, they cannot reach this address (another MASTER_ADDR or "
            "MASTER_PORT, a firewall) or need more time (timeout=)."
        )

    def _accept(self) -> str:
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return ""
        connection.setblocking(False)
        self.heard[connection] = b""
        self.selector.register(connection, selectors.EVENT_READ)
        return ""

    def _hear(self, connection: Any) -> str:
        try:
            data = connection.recv(4096)
        except BlockingIOError:
            return ""
        except OSError:
            data = b""
        line = self.heard.get(connection, b"") + data
        if not data or len(line) > LONGEST:
            self._forget(connection)
            return ""
        self.heard[connection] = line
        if b"\n" not in line:
            return ""
        said = read(line)
        # A stranger, whose line must not end the job.
        if said is None or not isinstance(said.get("rank"), int) or "world" not in said:
            self._forget(connection)
            return ""
        return self._join(connection, said)

    def _forget(self, connection: socket.socket) -> None:
        """Drops a connection: a stranger's, or that of a rank that ended before all were there."""
        self.selector.unregister(connection)
        self.heard.pop(connection, None)
        for rank in [rank for rank, known in self.connections.items() if known is connection]:
            del self.connections[rank], self.joined[rank]
        connection.close()

    def _join(self, connection: socket.socket, said: Line) -> str:
        rank = said["rank"]
        problem = _mismatch(self.joined[0], said)
        if rank in self.joined and not problem:
            problem = (
                f"init_process_group: two processes are rank {rank}: {_name(self.joined[rank])} and "
                f"{_name(said)}. Give every process its own RANK from 0 to {self.start.size - 1}."
            )
        if rank in self.joined or not 0 <= rank < self.start.size:
            rank = -1 - len(self.connections)  # it gets the answer and is not counted
        if rank >= 0:
            self.joined[rank] = said
        self.connections[rank] = connection
        return problem

    def _answer(self, answer: Line) -> None:
        line = json.dumps(answer).encode() + b"\n"
        for connection in self.connections.values():
            try:
                connection.setblocking(True)
                connection.settimeout(2)
                connection.sendall(line)
            except OSError:
                continue  # its rank has ended; the others will miss it later


def _name(said: Line) -> str:
    return f"process {said.get('pid')} on {said.get('host')}"


def _mismatch(mine: Line, said: Line) -> str:
    for field, what in (("world", "world_size"), ("jaxpar", "jaxpar"), ("jax", "jax"), ("jaxlib", "jaxlib")):
        if said.get(field) != mine[field]:
            return (
                f"init_process_group: rank {said['rank']} ({_name(said)}) has {what} {said.get(field)}, rank "
                f"0 ({_name(mine)}) has {what} {mine[field]}. Start all ranks with the same "
                f"{'WORLD_SIZE' if field == 'world' else 'installation'}."
            )
    return ""


def listen(start: Start, mine: Line, patience: float) -> socket.socket:
    """The socket at rank 0's address.

    Waits up to `patience` seconds for the port, which a process that is ending may still have.
    """
    deadline = time.monotonic() + patience
    try:
        family, where = _wildcard(start)
    except OSError as error:
        raise DistributedError(_unknown(start, error)) from None
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # ranks may come by IPv4 as well
    while True:
        try:
            listener = socket.create_server(where, family=family, backlog=1024, dualstack_ipv6=both)
            listener.setblocking(False)
            return listener
        except OSError as error:
            if time.monotonic() > deadline:
                raise DistributedError(_taken(start, mine, error)) from None
            time.sleep(0.1)


def _wildcard(start: Start) -> tuple[int, tuple]:
    """Where rank 0 listens: on a loopback address if it was given one, otherwise on all interfaces."""
    family, _, _, _, where = socket.getaddrinfo(start.host, start.port, type=socket.SOCK_STREAM)[0]
    if loopback(str(where[0])):
        return family, where
    return (socket.AF_INET6, ("::", start.port)) if has_ipv6() else (socket.AF_INET, ("", start.port))


def has_ipv6() -> bool:
    """Whether this host has IPv6. Many containers lack it; `socket.has_ipv6` tells how Python was built."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as one:
            one.bind(("::", 0))
    except OSError:
        return False
    return True


def loopback(host: str) -> bool:
    return host.startswith("127.") or host in ("localhost", "::1")


def _taken(start: Start, mine: Line, error: OSError) -> str:
    try:  # if another process of this job is rank 0 too, it says so itself
        with socket.create_connection((start.host, start.port), 1) as connection:
            answer = _ask(connection, mine, time.monotonic() + LATE + 1)
            if answer and answer["jaxpar"] == "error":
                return answer["text"]
    except OSError:
        pass
    reason = os.strerror(error.errno or 0)  # the error's own text has the address once more
    return (
        f"init_process_group: rank 0 cannot listen at {start.address}: {reason}. Another program has "
        f"that port, perhaps an earlier run that has not ended; end it, or set MASTER_PORT to another port."
    )


def keep(listener: socket.socket) -> socket.socket | None:
    """A second socket on the listener's port, so that no other program takes it before JAX's coordinator.

    It does not listen, and both it and the coordinator allow the port to be shared.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        return None
    hold = socket.socket(listener.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        hold.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        hold.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        hold.bind(listener.getsockname())
        return hold
    except OSError:
        hold.close()
        return None


# -------------------------------------------------------------------------------------- other ranks


def _guest(start: Start, mine: Line, timeout: float) -> Meeting:
    """Knocks until rank 0 opens, and waits for its answer."""
    began = time.monotonic()
    deadline, pause, remind = began + timeout, 0.02, began + 15
    reason = "nothing answered"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(
                (start.host, start.port), max(0.1, deadline - time.monotonic())
            ) as at:
                # Rank 0 may have started later than this rank, and then its time ends later too.
                answer = _ask(at, mine, deadline + timeout)
            if answer and answer["jaxpar"] == "go":
                return Meeting(answer["hosts"], None)
            if answer:
                raise DistributedError(answer["text"])
            reason = "what listens there is not rank 0 of a jaxpar job, or it ended"
        except OSError as error:
            reason = (
                _unknown(start, error) if isinstance(error, socket.gaierror) else error.strerror or str(error)
            )
        if time.monotonic() > remind:
            remind += 60
            _log.warning("rank %s waits for rank 0 at %s: %s.", start.rank, start.address, reason)
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(0.5, pause * 1.5)  # of thousands of ranks, not all should knock every 20 ms
    raise DistributedError(
        f"init_process_group: rank {start.rank} of {start.size} did not reach rank 0 at {start.address} "
        f"within {timeout:g} s: {reason}. Is rank 0 running, are MASTER_ADDR and MASTER_PORT its host and "
        "port, and does a firewall let this host through?"
    )


def _unknown(start: Start, error: OSError) -> str:
    return f"the host name {start.host!r} is unknown ({error.strerror or error})"


def _ask(connection: socket.socket, mine: Line, deadline: float) -> Line | None:
    """The answer to a hello; None if it does not come from rank 0 of a job."""
    connection.sendall(json.dumps(mine).encode() + b"\n")
    line = b""
    while b"\n" not in line and len(line) <= LONGEST:
        connection.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            data = connection.recv(4096)
        except TimeoutError:
            return None
        if not data:
            return None
        line += data
    answer = read(line)
    return answer if answer and answer["jaxpar"] in ("go", "error") else None


def read(line: bytes) -> Line | None:
    """A line of this protocol; None for anything else."""
    try:
        said = json.loads(line.split(b"\n", 1)[0])
    except ValueError:
        return None
    return said if isinstance(said, dict) and "jaxpar" in said else None
