"""What several processes agree on.

Parameters and statistics are the same on all ranks, so rank 0 alone writes them and all ranks read them.
Small values may differ: positions in the data, random streams. Every rank sends its own to rank 0, which
stores them once if they are equal, and one for each rank if not. Large arrays in the state of an object have
no such rule behind them, so their digests are compared, and a difference is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import jax
import numpy as np

from ..distributed import preempted as preempted
from ..distributed.exchange import exchange, ranks_text
from ..distributed.group import rank, size
from ..errors import CheckpointError
from .plain import LARGE, decode, encode
from .step import SavedValue, State

PATIENCE = 1800.0
"""Seconds to wait for rank 0's disk, and for reading; what torch waits for a collective."""

MOST = 1 << 20
"""Bytes that a rank may send: they travel through the coordinator."""

T = TypeVar("T")


def agree(what: str, work: Callable[[], T]) -> list[T]:
    """Every rank's result of some work, which must survive JSON; raises on all ranks what went wrong on one.

    A rank that raised without coming here would leave the others waiting.
    """
    if size() == 1:
        return [work()]
    error = None
    try:
        text = json.dumps({"value": work()})
        if len(text) > MOST:
            raise CheckpointError(
                f"Checkpointer: the numbers, texts and states of rank {rank()} are {len(text):,} bytes, and "
                f"{MOST:,} can be exchanged; keep large state in arrays of {LARGE:,} bytes or more."
            )
    except Exception as raised:  # whatever an item raises
        error = raised
        name = "" if isinstance(raised, CheckpointError) else f"{type(raised).__name__}: "
        text = json.dumps({"error": f"{name}{raised}"})
    answers = [json.loads(answer) for answer in exchange(what, text, timeout=PATIENCE)]
    if error is not None:
        raise error
    for i, answer in enumerate(answers):
        if "error" in answer:
            raise CheckpointError(f"{answer['error']} (rank {i})")
    return [answer["value"] for answer in answers]


def check_alike(digests: Sequence[Mapping[str, str]]) -> None:
    """Compares the ranks' digests of large arrays, by leaf.

    Raises:
      CheckpointError: an array differs between ranks, or only some of them have it.
    """
    for leaf in dict.fromkeys(leaf for held in digests for leaf in held):
        first, *others = [held.get(leaf) for held in digests]
        differing = [i for i, other in enumerate(others, 1) if other != first]
        if differing:
            raise CheckpointError(
                f"Checkpointer.save: {leaf} is not the same on {ranks_text(differing)} as on rank 0, which "
                f"writes arrays of {LARGE:,} bytes or more for all ranks. Make them equal "
                "(jaxpar.distributed.broadcast, all_reduce), or keep them out of the state."
            )


def own(states: list[State], item: str) -> dict[str, SavedValue]:
    """This rank's small values of an item.

    With as many ranks as saved them, each gets its own. With another number, what was equal on all ranks is
    still right. Of a random stream nothing matters but that every rank has its own: rank r continues that of
    the old rank r, and where there was none, rank 0's folded with r.

    Raises:
      CheckpointError: the ranks were in different places, and their number has changed.
    """
    if len(states) in (1, size()):
        return states[rank() % len(states)].get(item, {})
    found: dict[str, SavedValue] = {}
    for name, first in states[0].get(item, {}).items():
        theirs = [state[item][name] for state in states]
        if all(entry == first for entry in theirs):
            found[name] = first
        elif not first["stream"]:
            raise CheckpointError(
                f"Checkpointer.restore: {item}: {name} was different on each of the {len(states)} ranks that "
                f"saved it, and now there are {size()}. A place in one rank's part of the data has no "
                f"meaning for another division: resume with {len(states)} processes, or restore without "
                f"{item!r} and begin at the start of an epoch."
            )
        elif rank() < len(states):
            found[name] = theirs[rank()]
        else:
            found[name] = _folded(first)
    return found


def _folded(entry: SavedValue) -> SavedValue:
    value = decode(entry["value"])
    if isinstance(value, np.ndarray):  # the count of a stream, whose key differs already
        return entry
    fold = jax.random.fold_in
    for _ in value.shape:
        fold = jax.vmap(fold, (0, None))
    return {"value": encode(fold(value, rank()), "stream"), "stream": True}
