"""Texts of any size between the ranks of a group, each read by those who need it, and deleted then.

`exchange` gives every text to every rank, in one message. Here its message says what there is, and small
texts are in it; large ones lie in the coordinator's store, cut into pieces of which each is one message,
until all have read theirs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..errors import DistributedError, DivergenceError, GroupError, LeafError
from .exchange import PREFIX, delete, exchange, put, take
from .group import Group
from .step_agreement import difference

WHAT = "objects"
SMALL = 2**14
"""Characters that go with the message."""
PIECE = 2**20
"""Characters of a piece: one message. gRPC's own limit is 4 MB; that JAX lifts it is no promise."""
LARGEST = 2**26
"""Characters that one rank may send in one call: some seconds, and the memory of rank 0's process."""
Problem = GroupError | LeafError | None
_KINDS = {kind.__name__: kind for kind in (GroupError, LeafError)}


def post(
    group: Group, call: str, texts: Sequence[str], senders: Sequence[int], which: int, problem: Problem = None
) -> list[str]:
    """Text number `which` of each of the senders; all ranks of the group call it.

    Args:
      call: what is called, with all that has to be the same on all ranks.
      texts: what this rank sends, if anything.
      senders: whose texts this rank wants.
      problem: why this rank has nothing to send, though it should; all ranks raise it.

    Raises:
      DivergenceError: ranks call something else. GroupError, LeafError: a rank has a problem.
      DistributedError: ranks did not come.
    """
    problem = problem or _too_large(sum(map(len, texts)))
    if problem:
        texts = []
    stored = sum(map(len, texts)) > SMALL
    folder = f"{PREFIX}/{group.folder}/{WHAT}/texts"
    if stored:
        _store(f"{folder}/{group.rank}", texts)
    told_as = [type(problem).__name__, str(problem)] if problem else None
    own_letter = {
        "call": call,
        "problem": told_as,
        "sizes": list(map(len, texts)),
        "texts": None if stored else texts,
    }
    letters = [json.loads(text) for text in exchange(WHAT, json.dumps(own_letter), group.timeout, group)]
    error = _error(group, letters)
    received = [] if error else [_read(f"{folder}/{r}", letters[r], which, group.timeout) for r in senders]
    if any(letter["texts"] is None for letter in letters):
        exchange(f"{WHAT}, read", "", group.timeout, group)
        if stored:
            delete(f"{folder}/{group.rank}")
    if error:
        raise error
    return received


def _too_large(size: int) -> Problem:
    if size <= LARGEST:
        return None
    return LeafError(
        f"{size / 2**20:.0f} MiB of text are too much for the memory of rank 0's process; the limit is "
        f"{LARGEST >> 20} MiB. Send arrays with all_gather, gather, broadcast or scatter."
    )


def _store(folder: str, texts: Sequence[str]) -> None:
    for i, text in enumerate(texts):
        for start in range(0, len(text), PIECE):
            put(f"{folder}/{i}/{start}", text[start : start + PIECE])


def _read(folder: str, letter: dict[str, Any], which: int, timeout: float) -> str:
    if letter["texts"] is not None:
        return letter["texts"][which]
    pieces = [take(f"{folder}/{which}/{start}", timeout) for start in range(0, letter["sizes"][which], PIECE)]
    text = "".join(piece or "" for piece in pieces)
    if len(text) != letter["sizes"][which]:
        raise DistributedError(
            f"{letter['call']}: of {letter['sizes'][which]} characters {len(text)} came in {timeout:g} s."
        )
    return text


def _error(group: Group, letters: list[dict[str, Any]]) -> Exception | None:
    """What all ranks raise."""
    calls = {rank: {"the call": letter["call"]} for rank, letter in zip(group.ranks, letters, strict=True)}
    if different := difference("a call with objects", calls):
        return DivergenceError(different)
    for rank, letter in zip(group.ranks, letters, strict=True):
        if letter["problem"]:
            kind, why = letter["problem"]
            return _KINDS[kind](f"{letter['call']}, on rank {rank}: {why}")
    return None
