"""Texts between the ranks, through the coordinator's key-value store: no device, no collective.

With `exchange` the ranks agree before they run a program that would hang if they did not. It takes about 1
ms. This is the only file that touches the client of `jax.distributed`, which JAX keeps private. torch's
counterpart is its Store.

The calls of `exchange` with one `what` are numbered, so that they are kept apart. A rank deletes its text
of call i once call i + 1 is complete, because then every rank has read it.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from typing import Any

from ..errors import DistributedError
from . import whereabouts
from .group import Group, current
from .group import ranks_text as ranks_text

PREFIX = "jaxpar"

SLICE = 1.0
"""Seconds of waiting after which a rank looks up: the others may have been found in another call."""

_calls: Counter[str] = Counter()
_lock = threading.Lock()


def exchange(
    what: str, text: str, timeout: float = 60, group: Group | None = None, *, label: str = ""
) -> list[str]:
    """Every rank's text, in rank order; `[text]` alone.

    Args:
      what: names the exchange, also in errors. Every rank calls it equally often with the same name, from
        one thread at a time. Use few names: one key of each stays in the store.
      text: anything, up to some hundred KB.
      timeout: seconds until the ranks that did not come are named.
      group: whose ranks; the default group's if left out.
      said: what users call it, if that is not `what`.

    Raises:
      DistributedError: ranks did not come, or the coordinator (rank 0's process) is gone.
      DivergenceError: another rank is in another call.
    """
    texts = collect(what, text, timeout, group, label=label)
    received = [text for text in texts if text is not None]
    if len(received) == len(texts):
        return received
    raise DistributedError(
        f"exchange {what!r}: {ranks_text(_ranks_where(texts, False, group))} did not come within "
        f"{timeout:g} s; {ranks_text(_ranks_where(texts, True, group))} did. Ranks that are missing "
        "have ended, hang, or run another program: look at their output first."
    )


def collect(
    what: str, text: str, timeout: float, group: Group | None = None, *, label: str = ""
) -> list[str | None]:
    """Like `exchange`, but returns None for the ranks that did not come instead of raising."""
    group = group or current()
    if group is None or group.size == 1:
        return [text]
    folder = f"{PREFIX}/{group.folder}/{what}"
    with _lock:
        _calls[folder] += 1
        call = _calls[folder]
    whereabouts.begin(label or what, what, group)
    deadline = time.monotonic() + timeout
    put(f"{folder}/{call}/{group.rank}", text)
    texts: list[str | None] = [None] * group.size
    for rank in range(group.size):
        with whereabouts.waiting([group.ranks[rank]]):
            texts[rank] = (
                take(f"{folder}/{call}/{rank}", deadline - time.monotonic()) if rank != group.rank else text
            )
        if texts[rank] is None:  # the time is over, and later ranks may have come all the same
            stored = below(f"{folder}/{call}")
            return [stored.get(f"{folder}/{call}/{rank}") for rank in range(group.size)]
    if call > 1:
        delete(f"{folder}/{call - 1}/{group.rank}")
    return texts


def _ranks_where(texts: list[str | None], arrived: bool, group: Group | None) -> list[int]:
    ranks = group.ranks if group else range(len(texts))
    return [rank for rank, text in zip(ranks, texts, strict=True) if (text is not None) is arrived]


def put(key: str, text: str, *, over: bool = False) -> None:
    """Gives a key its text, which it has for good unless `over` may replace it."""
    _call("key_value_set", key, text, over)


def take(key: str, timeout: float) -> str | None:
    """The text of a key as soon as it is there; None after `timeout` seconds.

    Raises:
      DivergenceError: meanwhile the ranks were found to wait for each other in different calls.
    """
    deadline = time.monotonic() + timeout
    while True:
        remaining = deadline - time.monotonic()
        text = sleep(key, min(SLICE, remaining))
        whereabouts.check()
        if text is not None or remaining <= SLICE:
            return text


def sleep(key: str, timeout: float) -> str | None:
    """Like `take`, in one call that nothing but the key and the time ends."""
    try:
        return _call("blocking_key_value_get", key, max(1, int(timeout * 1000)))
    except TimeoutError:
        return None


def below(key: str) -> dict[str, str]:
    """The keys below a key and their texts, now."""
    return dict(_call("key_value_dir_get", f"{key}/"))


def delete(key: str) -> None:
    _call("key_value_delete", key)


def count(key: str) -> int:
    """1, 2, 3, ...: a number that no other call on any rank gets."""
    return int(_call("key_value_increment", key, 1))


def _client() -> Any:
    from .._upstream import coordination_client

    return coordination_client()


def _call(method: str, *arguments: Any) -> Any:
    """One call of the client. Raises TimeoutError when the time is over, DistributedError when it is gone."""
    import jax

    client = _client()
    if client is None:
        raise DistributedError(
            "jax.distributed was shut down behind jaxpar's back; use destroy_process_group."
        )
    try:
        return getattr(client, method)(*arguments)
    except jax.errors.JaxRuntimeError as error:
        code = re.match(r"\w*", str(error))
        if code and code[0] == "DEADLINE_EXCEEDED":
            raise TimeoutError from None
        raise DistributedError(
            f"the coordinator, which is rank 0's process, does not answer ({method}): "
            f"{str(error).splitlines()[0]}"
        ) from error
