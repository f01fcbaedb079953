"""Exchange messages, texts under keys (README.md), through the coordinator's key-value store.

Only this file uses the client of `jax.distributed`, which is private to JAX. torch's counterpart is its
Store.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import DistributedError
from . import call_log
from ._protocol.effects import Begin, Delete, Effect, Effects, Post, Read, ReadFolder, Send, Wait
from ._protocol.lockstep import Lockstep
from ._protocol.lockstep import exhausted as exhausted
from ._protocol.lockstep import is_over as is_over
from .group import Group, current
from .group import ranks_text as ranks_text

PREFIX = "jaxpar"

SLICE = 1.0
"""Seconds between checks, while waiting, whether the ranks are deadlocked in different calls."""

T = TypeVar("T")
_lockstep = Lockstep()


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
    deadline = time.monotonic() + timeout
    begin = Begin(label or what, *call_log.counted(what, group))
    call = _lockstep.collect(folder, begin, group.ranks, group.rank, text)
    return run(call, lambda wait: read(wait.key, deadline - time.monotonic()))


def run(call: Effects[T], wait_for: Callable[[Read], str | None]) -> T:
    """Run one call of the state machine; `wait_for` reads a key that may not be set yet."""
    received: Any = None
    error: BaseException | None = None
    while True:
        with call_log.machine:
            try:
                effect = call.throw(error) if error is not None else call.send(received)
            except StopIteration as end:
                return end.value
        received, error = None, None
        try:
            received = _perform(effect, wait_for)
        except BaseException as raised:
            error = raised


def _perform(effect: Effect, wait_for: Callable[[Read], str | None]) -> str | dict[str, str] | None:
    match effect:
        case Begin():
            call_log.begin(*effect)
        case Wait():
            call_log.waits()
        case Post():
            post(effect.key, effect.text)
        case Delete():
            delete(effect.key)
        case Send():
            send(effect.kind, **effect.fields)
        case ReadFolder():
            return read_folder(effect.key)
        case Read():
            with call_log.waiting([effect.rank]):
                return wait_for(effect)
    return None


def send(kind: str, **fields: object) -> None:
    """Send a message to the message threads of all ranks."""
    group = current()
    assert group is not None
    folder = f"{PREFIX}/{group.generation}/messages"
    # The counter gives every message a number of its own, also if two ranks send at once.
    post(f"{folder}/{next_number(f'{folder}/last')}", json.dumps({"kind": kind, "rank": group.rank} | fields))


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
