"""Messages to all ranks at any time, received by a background thread within 1 to 2 ms.

They reach ranks whose main thread is blocked in a collective. torch's collectives can be aborted instead.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from ..errors import DistributedError
from .exchange import PREFIX, read_blocking
from .exchange import send as send
from .group import Group

Message = dict[str, Any]
"""A JSON object: `kind`, the sender's `rank`, and the fields of that kind."""
Listener = Callable[[Message], None]

_listeners: dict[str, Listener] = {}
_thread: threading.Thread | None = None


def on(kind: str, listener: Listener) -> None:
    """Call `listener` with every message of a kind, in the background thread. It must not block."""
    _listeners[kind] = listener


def start(group: Group) -> None:
    global _thread
    _thread = threading.Thread(target=_listen, args=(group,), name="jaxpar messages", daemon=True)
    _thread.start()


def stop() -> None:
    global _thread
    if _thread is not None:
        # The thread blocks in a C++ call that only a new key or its timeout ends: a message wakes it.
        send("end")
        _thread.join(5)
        _thread = None


def _folder(group: Group) -> str:
    return f"{PREFIX}/{group.generation}/messages"


def _listen(group: Group) -> None:
    number = 1
    while True:
        try:
            text = read_blocking(f"{_folder(group)}/{number}", 3600)
        except DistributedError:
            return  # the coordinator has ended, which JAX reports
        if text is None:
            continue
        number += 1
        message = json.loads(text)
        if message["kind"] == "end" and message["rank"] == group.rank:
            return
        listener = _listeners.get(message["kind"])
        if listener is not None:
            listener(message)
