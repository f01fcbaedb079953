"""What several processes agree on.

Parameters and statistics are the same on all ranks, so rank 0 alone writes them and all ranks read them, and
rank 0 needs nobody to save them. Small values may differ: positions in the data, random streams. Every rank
that takes part sends its own to rank 0, which stores them once if they are equal, and one for each rank if
not. Rank 0 does not write before it knows of every other rank that it takes part or has gone on without
(`distributed.attendance`), so a step never lacks the part of a rank that was on its way. Large arrays in the
state of an object have no such rule behind them, so their digests are compared, and a difference is refused.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np

from ..distributed import preempted as preempted
from ..distributed import whereabouts
from ..distributed.attendance import attend
from ..distributed.attendance import take_along as take_along
from ..distributed.exchange import PREFIX, delete, put, take
from ..distributed.group import rank, ranks_text, size
from ..errors import CheckpointError, DistributedError, DivergenceError
from .json_values import LARGE, decode, encode
from .step import Manifest, SavedValue, digest
from .warn import warn

PATIENCE = 1800.0
"""Seconds to wait for rank 0's disk, and for reading; what torch waits for a collective."""

MAX_MESSAGE = 1 << 20
"""Bytes that a rank may send: they travel through the coordinator."""

OK, MAX_OUTCOMES = "on disk", 64
"""What stands for a step that was written, and how many outcomes are kept for ranks that are behind."""

T = TypeVar("T")


def agree(what: str, directory: Path, work: Callable[[], T], together: bool = True) -> dict[int, T]:
    """The results of some work, which must survive JSON, of every rank that does it; raises on all of these
    what went wrong on one.

    A rank that raised without coming here would leave the others waiting.

    Args:
      what: the method. directory: of whose checkpoints.
      together: whether the ranks have something to tell each other.
    """
    if size() == 1 or not together:
        return {rank(): work()}
    error = None
    try:
        text = json.dumps({"value": work()})
        if len(text) > MAX_MESSAGE:
            raise CheckpointError(
                f"Checkpointer: the numbers, texts and states of rank {rank()} are {len(text):,} bytes, and "
                f"{MAX_MESSAGE:,} can be exchanged; keep large state in arrays of {LARGE:,} bytes or more."
            )
    except Exception as raised:  # whatever an item raises
        error = raised
        name = "" if isinstance(raised, CheckpointError) else f"{type(raised).__name__}: "
        text = json.dumps({"error": f"{name}{raised}"})
    try:
        texts = attend(f"{what} {_short(directory)}", text, PATIENCE, label=what)
    except DivergenceError:
        if error is None:
            raise
    if error is not None:
        raise error
    answers = {i: json.loads(text) for i, text in enumerate(texts) if text is not None}
    for i, answer in answers.items():
        if "error" in answer:
            raise CheckpointError(f"{answer['error']} (rank {i})")
    return {i: answer["value"] for i, answer in answers.items()}


class Outcomes:
    """What became of the steps of a directory: rank 0 writes them, and the others may ask."""

    def __init__(self, directory: Path):
        self._folder = f"{PREFIX}/checkpoints/{_short(directory)}"
        self._reported: deque[int] = deque()

    def begin(self) -> None:
        """Notes that rank 0 saves, which is what the others may wait for."""
        whereabouts.begin("Checkpointer.save", f"outcomes in {self._folder}", ())

    def report(self, step: int, trouble: str) -> None:
        """Says on rank 0 what went wrong with a step, "" if it is on disk."""
        if size() == 1:
            return
        with contextlib.suppress(DistributedError):  # nobody is there any more who could ask
            put(f"{self._folder}/{step}", trouble or OK, over=True)
            self._reported.append(step)
            if len(self._reported) > MAX_OUTCOMES:
                delete(f"{self._folder}/{self._reported.popleft()}")

    def receive(self, step: int) -> str | None:
        """What went wrong with a step, as soon as it is known; None if it is on disk."""
        whereabouts.begin("Checkpointer.wait", f"outcomes in {self._folder}", (0,))
        with whereabouts.waiting([0]):
            outcome = take(f"{self._folder}/{step}", PATIENCE)
        if outcome is None:
            raise DistributedError(
                f"Checkpointer.wait: rank 0 did not write step {step} within {PATIENCE:g} s."
            )
        return None if outcome == OK else outcome


def _short(directory: Path) -> str:
    return digest(str(directory).encode())[:12]


def check_equal(digests: Sequence[Mapping[str, str]]) -> None:
    """Compares the ranks' digests of large arrays, by leaf.

    Raises:
      CheckpointError: an array differs between ranks, or only some of them have it.
    """
    for leaf in dict.fromkeys(leaf for by_leaf in digests for leaf in by_leaf):
        first, *others = [by_leaf.get(leaf) for by_leaf in digests]
        differing = [i for i, other in enumerate(others, 1) if other != first]
        if differing:
            raise CheckpointError(
                f"Checkpointer.save: {leaf} is not the same on {ranks_text(differing)} as on rank 0, which "
                f"writes arrays of {LARGE:,} bytes or more for all ranks. Make them equal "
                "(jaxpar.distributed.broadcast, all_reduce), or keep them out of the state."
            )


def rank_values(path: Path, manifest: Manifest, item: str) -> dict[str, SavedValue]:
    """This rank's small values of an item, in the step at `path`.

    With as many ranks as saved them, each gets its own, and rank 0's where it has none. With another number,
    what was equal on all ranks is still right. Of a random stream nothing matters but that every rank has its
    own: rank r continues that of the old rank r, and where there was none, rank 0's folded with r.

    Raises:
      CheckpointError: the ranks were in different places, and their number has changed.
    """
    states, parts = manifest["states"], manifest.get("parts")
    if parts and size() == parts["size"]:
        if rank() in parts["ranks"]:
            return states[parts["ranks"].index(rank()) % len(states)].get(item, {})
        _warn_missing(path, parts["ranks"], item, states[0].get(item, {}), item in parts["items"])
        return states[0].get(item, {})
    if len(states) in (1, size()):
        return states[rank() % len(states)].get(item, {})
    values: dict[str, SavedValue] = {}
    for name, first in states[0].get(item, {}).items():
        by_rank = [state[item][name] for state in states]
        if all(entry == first for entry in by_rank):
            values[name] = first
        elif not first["stream"]:
            raise CheckpointError(
                f"Checkpointer.restore: {item}: {name} was different on each of the {len(states)} ranks that "
                f"saved it, and now there are {size()}. A place in one rank's part of the data has no "
                f"meaning for another division: resume with {len(states)} processes, or restore without "
                f"{item!r} and begin at the start of an epoch."
            )
        elif rank() < len(states):
            values[name] = by_rank[rank()]
        else:
            values[name] = _folded(first)
    return values


def _warn_missing(
    path: Path, ranks: list[int], item: str, values: Mapping[str, SavedValue], differs: bool
) -> None:
    """Warns of what may have been something else on this rank, which did not save it. Numbers and texts of
    trees are what a script counts, and it counts alike on all ranks."""
    if differs and any(entry["stream"] or name == "state" for name, entry in values.items()):
        warn(
            f"Checkpointer.restore: {path} was saved by {ranks_text(ranks)} alone, and rank {rank()} takes "
            f"rank 0's {item!r}. If it is something else on each rank, call save on all of them."
        )


def _folded(entry: SavedValue) -> SavedValue:
    value = decode(entry["value"])
    if isinstance(value, np.ndarray):  # the count of a stream, whose key differs already
        return entry
    fold = jax.random.fold_in
    for _ in value.shape:
        fold = jax.vmap(fold, (0, None))
    return {"value": encode(fold(value, rank()), "stream"), "stream": True}
