"""Transfer texts of any size between the ranks of a group: large ones in pieces, deleted once read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import DistributedError, DivergenceError, GroupError, LeafError
from . import call_log
from .exchange import PREFIX, delete, exchange, exchange_json, post, read
from .group import Group
from .step_agreement import difference

WHAT = "objects"
SMALL = 2**14
"""Maximum characters that are sent within the message."""
PIECE = 2**20
"""Characters per piece. gRPC's default limit is 4 MB; JAX raises it, but does not promise to."""
LARGEST = 2**26
"""Maximum characters per rank and call: this takes seconds, and fills the memory of rank 0's process."""
Problem = GroupError | LeafError | None
_KINDS = {kind.__name__: kind for kind in (GroupError, LeafError)}


def transfer(
    group: Group, call: str, texts: Sequence[str], senders: Sequence[int], which: int, problem: Problem = None
) -> list[str]:
    """Return text number `which` of every sender, by group rank. All ranks of the group must call it.

    `call` is the public call with the arguments that must be equal on all ranks, `texts` are the texts of
    this rank, and `problem` is an error on this rank, which all ranks raise.
    """
    # Not raised yet: this rank takes part in the exchange, so that all ranks raise the same error.
    problem = problem or _too_large(sum(map(len, texts)))
    if problem:
        texts = []
    stored = sum(map(len, texts)) > SMALL
    folder = f"{PREFIX}/{group.folder}/{WHAT}/texts"
    if stored:
        _store(f"{folder}/{group.rank}", texts)
    own_letter = {
        "call": call,
        "line": call_log.line(call_log.call_site()),
        "problem": [type(problem).__name__, str(problem)] if problem else None,
        "sizes": list(map(len, texts)),
        "texts": None if stored else texts,
    }
    letters_by_rank = exchange_json(WHAT, own_letter, group.timeout, group)
    letters = list(letters_by_rank.values())
    error = _error(letters_by_rank)
    received = [] if error else [_read(f"{folder}/{r}", letters[r], which, group.timeout) for r in senders]
    # Stored texts are deleted only after a second exchange has shown that all ranks have read them.
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
            post(f"{folder}/{i}/{start}", text[start : start + PIECE])


def _read(folder: str, letter: dict[str, Any], which: int, timeout: float) -> str:
    if letter["texts"] is not None:
        return letter["texts"][which]
    pieces = [read(f"{folder}/{which}/{start}", timeout) for start in range(0, letter["sizes"][which], PIECE)]
    text = "".join(piece or "" for piece in pieces)
    if len(text) != letter["sizes"][which]:
        raise DistributedError(
            f"{letter['call']}: of {letter['sizes'][which]} characters {len(text)} came in {timeout:g} s."
        )
    return text


def _error(letters: dict[int, dict[str, Any]]) -> Exception | None:
    calls = {rank: {"the call": letter["call"]} for rank, letter in letters.items()}
    lines = {rank: letter["line"] for rank, letter in letters.items()}
    if different := difference("a call with objects", calls, lines):
        return DivergenceError(different)
    for rank, letter in letters.items():
        if letter["problem"]:
            kind, why = letter["problem"]
            return _KINDS[kind](f"{letter['call']}, on rank {rank}: {why}")
    return None
