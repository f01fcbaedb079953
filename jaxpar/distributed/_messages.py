"""Messages to all ranks at any time: a thread that sleeps until the next one comes.

A rank that leaves with an exception, or has a batch that it has never seen, must tell ranks whose main
thread is blocked in a collective. The coordinator numbers the messages. On every rank a thread waits for
the next number in one call that returns when it is there: it costs nothing in between, and a message
arrives after 1 to 2 ms. torch has nothing like it, because its collectives can be aborted.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from ..errors import DistributedError
from .exchange import PREFIX, count, put, sleep
from .group import Group, current

Message = dict[str, Any]
"""`kind`, the sender's `rank`, and what belongs to the kind; JSON."""
Listener = Callable[[Message], None]

_listeners: dict[str, Listener] = {}
_thread: threading.Thread | None = None


def on(kind: str, listener: Listener) -> None:
    """Gives every message of a kind to `listener`, in the thread that waits for them. It must not block."""
    _listeners[kind] = listener


def send(kind: str, **fields: object) -> None:
    """Sends a message to all ranks, including this one."""
    group = current()
    assert group is not None
    number = count(f"{_folder(group)}/last")
    put(f"{_folder(group)}/{number}", json.dumps({"kind": kind, "rank": group.rank} | fields))


def start(group: Group) -> None:
    global _thread
    _thread = threading.Thread(target=_listen, args=(group,), name="jaxpar messages", daemon=True)
    _thread.start()


def stop() -> None:
    """Ends this rank's thread, which is in a call that only a message ends."""
    global _thread
    if _thread is not None:
        send("end")
        _thread.join(5)
        _thread = None


def _folder(group: Group) -> str:
    return f"{PREFIX}/{group.generation}/messages"


def _listen(group: Group) -> None:
    number = 1
    while True:
        try:
            text = sleep(f"{_folder(group)}/{number}", 3600)
        except DistributedError:
            return  # the coordinator is gone, which JAX reports
        if text is None:
            continue
        number += 1
        message = json.loads(text)
        if message["kind"] == "end" and message["rank"] == group.rank:
            return
        listener = _listeners.get(message["kind"])
        if listener is not None:
            listener(message)
