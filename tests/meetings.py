"""Ranks that meet in threads of this process, on loopback, with no JAX involved."""

from __future__ import annotations

import json
import socket
import threading
import time

from jaxpar import errors
from jaxpar.distributed._environment import Start
from jaxpar.distributed._handshake import RANK, RANK_0, LineReader, Session, introduce
from jaxpar.distributed._rendezvous import hello, meet
from jaxpar.distributed.secret import NOBODYS, Secret


def start(rank: int, size: int, port: int, host: str = "127.0.0.1") -> Start:
    return Start(rank, size, host, port)


def meeting(
    *starts: Start,
    timeout: float = 10,
    said: dict[int, dict] | None = None,
    secrets: dict[int, Secret] | Secret = NOBODYS,
) -> list:
    """What `meet` gave or raised, in the order of the arguments.

    `said` changes what the i-th says; `secrets` is the secret of all, or of the i-th.
    """
    results: list = [None] * len(starts)

    def one(i: int) -> None:
        secret = secrets if isinstance(secrets, Secret) else secrets.get(i, NOBODYS)
        try:
            results[i] = meet(starts[i], timeout, hello(starts[i]) | (said or {}).get(i, {}), secret)
            if results[i].hold is not None:
                results[i].hold.close()
        except errors.DistributedError as error:
            results[i] = error

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(starts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout + 10)
        assert not thread.is_alive()
    return results


def in_background(*starts: Start, **kwargs) -> tuple[threading.Thread, list]:
    """The same in a thread; its results are in the list when it has ended."""
    results: list = []
    thread = threading.Thread(target=lambda: results.extend(meeting(*starts, **kwargs)))
    thread.start()
    return thread, results


def knock(port: int, host: str = "127.0.0.1") -> socket.socket:
    """A connection, as soon as somebody listens."""
    for _ in range(500):
        try:
            return socket.create_connection((host, port), 1)
        except OSError:
            time.sleep(0.01)
    raise AssertionError("nobody listens")


def joined(start: Start, secret: Secret = NOBODYS) -> socket.socket:
    """The connection of a rank whose hello rank 0 has accepted."""
    connection = knock(start.port)
    session, reader, soon = introduced(connection, secret)
    connection.sendall(session.seal(RANK, json.dumps(hello(start)).encode()))
    assert b"wait" in session.open(RANK_0, reader.line(soon) or b"")
    return connection


def introduced(connection: socket.socket, secret: Secret) -> tuple[Session, LineReader, float]:
    """Both greetings, and the time until which rank 0 should have said more."""
    soon = time.monotonic() + 5
    return (*introduce(connection, secret, soon), soon)
