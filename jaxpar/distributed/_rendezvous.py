"""Rendezvous: every rank sends a hello to rank 0, which answers all ranks with "go" or one error.

`jax.distributed`, which starts at the same address a moment later, kills a process by a signal if a port is
in use, a peer is missing or two processes have the same rank. torch's TCPStore does not name the missing
ranks.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
from importlib import metadata
from typing import Any, NamedTuple, TypeAlias

from ..errors import DistributedError
from . import _port
from ._door import Door, Visitor
from ._environment import Start
from ._handshake import RANK, RANK_0, OtherSecret, Stranger, introduce
from .exchange import ranks_text
from .secret import NOBODYS, VARIABLE, Secret
from .tls import authority

LATE = 3.0
"""Seconds that rank 0 keeps listening after an error, so that late ranks receive it, too."""
SOON = 10.0
"""Seconds within which rank 0 must prove the job secret."""
FIELDS = {"rank": int, "world": int, "host": str, "pid": int} | dict.fromkeys(
    ("jaxpar", "jax", "jaxlib", "tls"), str
)
"""Fields of a hello and their types."""
EQUAL = {
    "world": ("world_size", "WORLD_SIZE"),
    "jaxpar": ("jaxpar", "installation"),
    "jax": ("jax", "installation"),
    "jaxlib": ("jaxlib", "installation"),
    "tls": ("TLS with the certificate authority", "JAX_MTLS_CA_FILE, or none"),
}
"""Fields that all ranks have in common, how an error names them, and what then has to be the same."""

Line: TypeAlias = "dict[str, Any]"
"""A hello or an answer. Without a job secret any peer may send one, so its values are untrusted."""

_log = logging.getLogger("jaxpar")


class Meeting(NamedTuple):
    """Result of the rendezvous: the number of hosts and, on rank 0, the reserved port."""

    hosts: int
    hold: contextlib.ExitStack | None = None
    """Sockets that reserve the port."""
    bind: str | None = None
    """The address at which rank 0 listened; None for all interfaces, and on other ranks."""


def hello(start: Start) -> Line:
    return {
        **versions(),
        "tls": authority(start),
        "rank": start.rank,
        "world": start.size,
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }


def versions() -> dict[str, str]:
    try:
        jaxpar = metadata.version("jaxpar")
    except metadata.PackageNotFoundError:
        jaxpar = "unknown"
    return {"jaxpar": jaxpar, "jax": metadata.version("jax"), "jaxlib": metadata.version("jaxlib")}


def meet(start: Start, timeout: float, own_hello: Line | None = None, secret: Secret = NOBODYS) -> Meeting:
    """Wait until all ranks have arrived; raise the same DistributedError on every rank that did."""
    own_hello = own_hello or hello(start)
    if start.rank == 0:
        return _Host(start, own_hello, timeout, secret).meet()
    return _guest(start, own_hello, timeout, secret)


# ------------------------------------------------------------------------------------------- rank 0


class _Host:
    def __init__(self, start: Start, own_hello: Line, timeout: float, secret: Secret):
        self.start, self.timeout, self.secret = start, timeout, secret
        self.deadline = time.monotonic() + timeout
        self.joined: dict[int, Line] = {0: own_hello}
        self.ranks: dict[Visitor, int | None] = {}
        """Ranks by connection; None for a guest that gets the answer but is not counted."""
        self.turned_away = ""
        """The error sent to the last rejected guest."""
        self.logged: set[str] = set()
        """Reasons for rejected connections that have been logged."""
        # Listening first and answering later: the backlog holds ranks that connect before `meet`.
        self.port = _listen(start, own_hello, min(timeout, 2.0), secret)
        self.door = Door(self.port, secret, _outdated(start))

    def meet(self) -> Meeting:
        hold = None
        try:
            self._warn()
            problem = self._wait()
            if not problem:
                # Reserved before the answer, after which the others look for the coordinator.
                hold = _port.keep(self.port)
            hosts = len({rank_hello["host"] for rank_hello in self.joined.values()})
            answer = {"say": "error", "text": problem} if problem else {"say": "go", "hosts": hosts}
            for guest in self.ranks:
                self.door.tell(guest, _line(answer))
            if problem:
                raise DistributedError(problem)
            return Meeting(hosts, hold, None if self.port.everywhere else self.start.address)
        finally:
            self.door.close()

    def _warn(self) -> None:
        if self.port.everywhere:
            _log.warning(
                "rank 0 cannot listen at %s, which is no address of this host, so it listens at port %s of "
                "all its addresses. Set MASTER_ADDR to one of them to listen there alone.",
                self.start.address,
                self.start.port,
            )
        if self.secret == NOBODYS and not self.port.loopback:
            _log.warning(
                "rank 0 at %s knows no secret of this job, so whoever reaches that port can join it. Set %s "
                "to one random text on all ranks; a job's name from torchrun --rdzv-id or SLURM does, too.",
                self.start.address,
                VARIABLE,
            )

    def _wait(self) -> str:
        """Wait until all ranks have arrived or the time is up; return the error text, or ""."""
        problem, remind = "", time.monotonic() + 15
        while self._missing() and time.monotonic() < self.deadline:
            arrived, departed = self.door.look(min(1.0, max(0.01, self.deadline - time.monotonic())))
            for guest in departed:
                self._leave(guest)
            for guest in arrived:
                mismatch = self._join(guest)
                if mismatch and not problem:
                    # Raised at once, it would reach only the ranks that have arrived already.
                    problem, self.deadline = mismatch, min(self.deadline, time.monotonic() + LATE)
            self._log_turned_away()
            if time.monotonic() > remind:
                remind += 60
                _log.warning("rank 0 at %s waits for %s.", self.start.address, ranks_text(self._missing()))
        return problem or self._absent()

    def _missing(self) -> list[int]:
        if len(self.joined) == self.start.size:
            return []
        return [rank for rank in range(self.start.size) if rank not in self.joined]

    def _absent(self) -> str:
        if not self._missing():
            return ""
        text = (
            f"init_process_group: {ranks_text(self._missing())} of {self.start.size} did not come to rank 0 "
            f"at {self.start.address} within {self.timeout:g} s; {ranks_text(sorted(self.joined))} did. Look "
            "at their output; if they run, they cannot reach this address (another MASTER_ADDR or "
            "MASTER_PORT, a firewall) or need more time (timeout=)."
        )
        others = [self.turned_away, *self._strangers().values()]
        return " ".join([text, *(f"Turned away: {other}" for other in others if other)])

    def _strangers(self) -> dict[str, str]:
        counts = self.door.turned_away
        texts = {
            "secret": f"connections ({counts['secret']}) with another secret than rank 0's, which comes from "
            f"{self.secret.source}. If they are ranks, set {VARIABLE} to the same text on all.",
            "outdated": f"connections ({counts['outdated']}) of an older jaxpar, which knows no secrets. "
            "Install the same one on all hosts.",
        }
        return {reason: text for reason, text in texts.items() if counts[reason]}

    def _log_turned_away(self) -> None:
        for reason, text in self._strangers().items():
            if reason not in self.logged:
                self.logged.add(reason)  # once, so that strangers cannot fill the log
                _log.warning("rank 0 at %s turned away %s", self.start.address, text)

    def _leave(self, guest: Visitor) -> None:
        rank = self.ranks.pop(guest)
        if rank is not None:
            del self.joined[rank]

    def _join(self, guest: Visitor) -> str:
        """Accept a guest or reject it individually; return an error that concerns all ranks, or ""."""
        guest_hello = read(guest.hello or b"")
        problem = "" if guest_hello is None else _mismatch(self.joined[0], guest_hello)
        refusal = "" if problem else self._refusal(guest_hello)
        if guest_hello is None or refusal:
            self.turned_away = refusal
            self.door.dismiss(guest, _line({"say": "error", "text": refusal}))
            return ""
        self.ranks[guest] = None if problem else guest_hello["rank"]
        if not problem:
            self.joined[guest_hello["rank"]] = guest_hello
        self.door.tell(guest, _line({"say": "wait"}))
        return problem

    def _refusal(self, guest_hello: Line | None) -> str:
        # A superfluous process must not end a job that is complete without it, so only it gets the error.
        if guest_hello is None:
            return (
                f"init_process_group: rank 0 at {self.start.address} does not understand this process: a "
                f"hello has {', '.join(FIELDS)}. Install the same jaxpar on all hosts."
            )
        rank, last = guest_hello["rank"], self.start.size - 1
        if not 0 <= rank <= last:
            return (
                f"init_process_group: {_name(guest_hello)} is rank {rank}, and ranks are 0 to {last}. "
                "Set its RANK."
            )
        if rank in self.joined:
            return (
                f"init_process_group: two processes are rank {rank}: {_name(self.joined[rank])} and "
                f"{_name(guest_hello)}. Give every process its own RANK from 0 to {last}."
            )
        return ""


def _name(sender_hello: Line) -> str:
    return f"process {sender_hello['pid']} on {sender_hello['host']}"


def _mismatch(rank_0_hello: Line, guest_hello: Line) -> str:
    for field, (what, cure) in EQUAL.items():
        if guest_hello[field] != rank_0_hello[field]:
            return (
                f"init_process_group: rank {guest_hello['rank']} ({_name(guest_hello)}) has {what} "
                f"{guest_hello[field] or 'none'}, rank 0 ({_name(rank_0_hello)}) has {what} "
                f"{rank_0_hello[field] or 'none'}. Start all ranks with the same {cure}."
            )
    return ""


def _outdated(start: Start) -> bytes:
    text = (
        f"init_process_group: rank 0 at {start.address} has a newer jaxpar, whose ranks show that they know "
        "the job's secret, and this rank's jaxpar knows of none. Install the same jaxpar on all hosts."
    )
    return _line({"jaxpar": "error", "text": text}) + b"\n"


def _listen(start: Start, own_hello: Line, patience: float, secret: Secret) -> _port.ListeningPort:
    try:
        return _port.listen(start, patience)
    except socket.gaierror as error:
        raise DistributedError(f"init_process_group: {_unknown(start, error)}.") from None
    except OSError as error:
        raise DistributedError(_taken(start, own_hello, error, secret)) from None


def _taken(start: Start, own_hello: Line, error: OSError, secret: Secret) -> str:
    # If the port belongs to a second rank 0 of this job, that process knows the error: ask it.
    with contextlib.suppress(OSError, Stranger):
        answer = _ask(start, own_hello, time.monotonic() + LATE + 1, 0, secret)
        if answer["say"] == "error":
            return answer["text"]
    reason = os.strerror(error.errno or 0)  # `str(error)` repeats the address
    return (
        f"init_process_group: rank 0 cannot listen at {start.address}: {reason}. Another program has "
        f"that port, perhaps an earlier run that has not ended; end it, or set MASTER_PORT to another port."
    )


# -------------------------------------------------------------------------------------- other ranks


def _guest(start: Start, own_hello: Line, timeout: float, secret: Secret) -> Meeting:
    began = time.monotonic()
    deadline, pause, remind = began + timeout, 0.02, began + 15
    reason, refusal = "nothing answered", ""
    while time.monotonic() < deadline:
        try:
            # Rank 0 may have started later than this rank; then its deadline is later, too.
            answer = _ask(start, own_hello, deadline, timeout, secret)
            if answer["say"] == "go":
                return Meeting(answer["hosts"])
            raise DistributedError(answer["text"])
        except Stranger as stranger:
            reason = str(stranger)
            if isinstance(stranger, OtherSecret) and not refusal:
                remind, refusal = 0.0, reason  # logged at once: waiting seldom helps
        except OSError as error:
            reason = (
                _unknown(start, error) if isinstance(error, socket.gaierror) else error.strerror or str(error)
            )
        if time.monotonic() > remind:
            remind = time.monotonic() + 60
            _log.warning("rank %s waits for rank 0 at %s: %s.", start.rank, start.address, reason)
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(0.5, pause * 1.5)  # thousands of ranks must not connect every 20 ms
    raise DistributedError(
        f"init_process_group: rank {start.rank} of {start.size} did not reach rank 0 at {start.address} "
        f"within {timeout:g} s: {refusal or reason}. Is rank 0 running, are MASTER_ADDR and MASTER_PORT its "
        "host and port, and does a firewall let this host through?"
    )


def _unknown(start: Start, error: OSError) -> str:
    return f"the host name {start.host!r} is unknown ({error.strerror or error})"


def _ask(start: Start, own_hello: Line, deadline: float, answer_seconds: float, secret: Secret) -> Line:
    """Send a hello and return rank 0's answer, which may take `answer_seconds` after its first reply."""
    began = time.monotonic()
    with socket.create_connection((start.host, start.port), max(0.1, deadline - began)) as connection:
        limit = max(began + 0.1, min(deadline, began + SOON))
        session, reader = introduce(connection, secret, limit)
        connection.sendall(session.seal(RANK, _line(own_hello)))
        while True:
            line = reader.line(limit)
            if line is None:
                raise Stranger("rank 0 closed the connection, or said nothing: it ended, or is very busy")
            answer = json.loads(session.open(RANK_0, line))
            if answer["say"] != "wait":
                return answer
            limit = deadline + answer_seconds


def _line(message: Line) -> bytes:
    return json.dumps(message).encode()


def read(text: bytes) -> Line | None:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):  # deeply nested JSON exhausts the stack
        return None
    if not isinstance(message, dict):
        return None
    return message if all(type(message.get(name)) is kind for name, kind in FIELDS.items()) else None
