"""Exchange messages, texts under keys (README.md), through the coordinator's key-value store.

Only this file uses the client of `jax.distributed`, which is private to JAX. torch's counterpart is its
Store.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from typing import Any

from ..errors import DistributedError
from . import call_log
from .group import Group, current
from .group import ranks_text as ranks_text

PREFIX = "jaxpar"

SLICE = 1.0
"""Seconds between checks, while waiting, whether the ranks are deadlocked in different calls."""

_calls: Counter[str] = Counter()
_lock = threading.Lock()


def exchange(
    what: str, text: str, timeout: float = 60, group: Group | None = None, *, label: str = ""
) -> list[str]:
    """Return every rank's text, in rank order, after about 1 ms; `[text]` without a process group.

    Every rank makes the same number of calls per name `what`, from one thread at a time. Use few names: one
    key per name stays in the store. `label` is the call's public name, if it is not `what`.

    Raises:
      DistributedError: ranks did not arrive in time, or the coordinator (rank 0's process) has ended.
      DivergenceError: a rank is in a different call.

    >>> from jaxpar.distributed.exchange import exchange
    >>> exchange("greeting", "hello")
    ['hello']
    """
    texts = collect(what, text, timeout, group, label=label)
    received = [text for text in texts if text is not None]
    if len(received) == len(texts):
        return received
    ranks = group.ranks if group else range(len(texts))
    arrived = [rank for rank, text in zip(ranks, texts, strict=True) if text is not None]
    absent = [rank for rank in ranks if rank not in arrived]
    raise DistributedError(
        f"exchange {what!r}: {ranks_text(absent)} did not come within "
        f"{timeout:g} s; {ranks_text(arrived)} did. Ranks that are missing "
        "have ended, hang, or run another program: look at their output first."
    )


def exchange_json(
    what: str, value: object, timeout: float = 60, group: Group | None = None
) -> dict[int, Any]:
    """Like `exchange` with values that JSON can hold, returned by rank of the default group."""
    texts = exchange(what, json.dumps(value), timeout, group)
    group = group or current()
    ranks = group.ranks if group else (0,)
    return {rank: json.loads(text) for rank, text in zip(ranks, texts, strict=True)}


def collect(
    what: str, text: str, timeout: float, group: Group | None = None, *, label: str = ""
) -> list[str | None]:
    """Like `exchange`, but return None for ranks that did not arrive instead of raising."""
    group = group or current()
    if group is None or group.size == 1:
        return [text]
    folder = f"{PREFIX}/{group.folder}/{what}"
    with _lock:
        _calls[folder] += 1
        call = _calls[folder]
    call_log.begin(label or what, what, group)
    deadline = time.monotonic() + timeout
    # Written before the first read, or two ranks would wait for each other's text.
    post(f"{folder}/{call}/{group.rank}", text)
    texts: list[str | None] = [None] * group.size
    for rank in range(group.size):
        with call_log.waiting([group.ranks[rank]]):
            texts[rank] = (
                read(f"{folder}/{call}/{rank}", deadline - time.monotonic()) if rank != group.rank else text
            )
        # After a timeout, ranks after this one may still have arrived: read what exists without waiting.
        if texts[rank] is None:
            stored = read_folder(f"{folder}/{call}")
            return [stored.get(f"{folder}/{call}/{rank}") for rank in range(group.size)]
    # This call is complete, so every rank has begun it and has therefore read all texts of the previous one.
    if call > 1:
        delete(f"{folder}/{call - 1}/{group.rank}")
    return texts


def post(key: str, text: str, *, replace: bool = False) -> None:
    """Set a key. Setting it again fails unless `replace`."""
    _call("key_value_set", key, text, replace)


def read(key: str, timeout: float) -> str | None:
    """Return a key's text once it is set, None after `timeout` seconds; raise if ranks are deadlocked."""
    # In slices, because no message can interrupt the client's blocking call.
    deadline = time.monotonic() + timeout
    while True:
        remaining = deadline - time.monotonic()
        text = read_blocking(key, min(SLICE, remaining))
        call_log.check()
        if text is not None or remaining <= SLICE:
            return text


def read_blocking(key: str, timeout: float) -> str | None:
    """Like `read`, in one blocking call without deadlock checks."""
    try:
        return _call("blocking_key_value_get", key, max(1, int(timeout * 1000)))
    except TimeoutError:
        return None


def read_folder(key: str) -> dict[str, str]:
    """Return all keys below a key that are set, with their texts."""
    return dict(_call("key_value_dir_get", f"{key}/"))


def delete(key: str) -> None:
    _call("key_value_delete", key)


def next_number(key: str) -> int:
    """Return 1, 2, 3, ...: unique among all calls with this key on all ranks."""
    return int(_call("key_value_increment", key, 1))


def _client() -> Any:
    from .._upstream import coordination_client

    return coordination_client()


def _call(method: str, *arguments: Any) -> Any:
    import jax

    client = _client()
    if client is None:
        raise DistributedError(
            "this process has no connection to the other ranks: it is a child of os.fork, which has none "
            "(let it compute with NumPy, or start it by multiprocessing's spawn), or jax.distributed was "
            "shut down behind jaxpar's back (use destroy_process_group)."
        )
    try:
        return getattr(client, method)(*arguments)
    except jax.errors.JaxRuntimeError as error:
        # JAX has one exception class for all status codes; its text starts with the code.
        code = re.match(r"\w*", str(error))
        if code and code[0] == "DEADLINE_EXCEEDED":
            raise TimeoutError from None
        raise DistributedError(
            f"the coordinator, which is rank 0's process, does not answer ({method}): "
            f"{str(error).splitlines()[0]}"
        ) from error
