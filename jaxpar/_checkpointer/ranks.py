"""Agreement between processes about saving and restoring.

Parameters are equal on all ranks, so rank 0 alone writes them. Small values may differ: each participating
rank sends them to rank 0, which stores them once if they are equal. Rank 0 does not write until every other
rank has either joined or moved on, so a step never lacks a slow rank's values. Large arrays in an object's
state are compared by digests.
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

from .._arguments import warn
from ..distributed import call_log
from ..distributed import preempted as preempted
from ..distributed.exchange import PREFIX, delete, post, read
from ..distributed.group import rank, ranks_text, size
from ..distributed.partial_exchange import exchange_partially
from ..distributed.partial_exchange import take_along as take_along
from ..errors import CheckpointError, DistributedError, DivergenceError
from .json_values import LARGE, decode, encode
from .step import Manifest, SavedValue, digest

PATIENCE = 1800.0
"""Seconds to wait for rank 0's disk, and for reading; torch's timeout for a collective."""

MAX_MESSAGE = 1 << 20
"""Bytes that a rank may send, since messages pass through the coordinator."""

OK, MAX_OUTCOMES = "on disk", 64
"""The outcome of a written step, and the number of outcomes stored for slower ranks."""

T = TypeVar("T")


def agree(what: str, directory: Path, work: Callable[[], T], together: bool = True) -> dict[int, T]:
    """Run `work` and gather its JSON-serializable results from every rank that calls this.

    An error on one rank is raised on all ranks. A rank that raises earlier would leave the others waiting.
    `what` is the method's name, and `together` whether the ranks have results to exchange.
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
    except Exception as raised:  # an item's methods may raise anything
        error = raised
        name = "" if isinstance(raised, CheckpointError) else f"{type(raised).__name__}: "
        text = json.dumps({"error": f"{name}{raised}"})
    try:
        texts = exchange_partially(f"{what} {_short(directory)}", text, PATIENCE, label=what)
    except DivergenceError:
        # This rank's own error explains why it diverged from the others, so it takes precedence.
        if error is None:
            raise
    if error is not None:
        raise error
    answers = {i: json.loads(text) for i, text in enumerate(texts) if text is not None}
    for i, answer in answers.items():
        if "error" in answer:
            raise of_rank(i, CheckpointError(f"{answer['error']} (rank {i})"))
    return {i: answer["value"] for i, answer in answers.items()}


def of_rank(number: int, error: CheckpointError) -> CheckpointError:
    error.of_rank = number
    return error


class Outcomes:
    """Outcomes of a directory's saves, which rank 0 publishes and the other ranks may fetch."""

    def __init__(self, directory: Path):
        self._folder = f"{PREFIX}/checkpoints/{_short(directory)}"
        self._reported: deque[int] = deque()

    def begin(self) -> None:
        call_log.begin("Checkpointer.save", f"outcomes in {self._folder}", ())

    def report(self, step: int, trouble: str) -> None:
        """Publish a step's error text on rank 0; "" means that the step is on disk."""
        if size() == 1:
            return
        with contextlib.suppress(DistributedError):  # all other ranks have left, so no rank reads it
            post(f"{self._folder}/{step}", trouble or OK, replace=True)
            self._reported.append(step)
            if len(self._reported) > MAX_OUTCOMES:
                delete(f"{self._folder}/{self._reported.popleft()}")

    def receive(self, step: int) -> str | None:
        """Wait for a step's outcome; return its error text, or None if it is on disk."""
        call_log.begin("Checkpointer.wait", f"outcomes in {self._folder}", (0,))
        with call_log.waiting([0]):
            outcome = read(f"{self._folder}/{step}", PATIENCE)
        if outcome is None:
            raise DistributedError(
                f"Checkpointer.wait: rank 0 did not write step {step} within {PATIENCE:g} s."
            )
        return None if outcome == OK else outcome


def _short(directory: Path) -> str:
    return digest(str(directory).encode())[:12]


def check_equal(digests: Sequence[Mapping[str, str]]) -> None:
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
    """Return this rank's small values of an item in the step at `path`.

    With a different number of ranks than saved the step, only values that were equal on all ranks are valid.
    Random streams merely have to differ: rank r continues the old rank r's stream, and additional ranks fold
    r into rank 0's key.
    """
    states, parts = manifest["states"], manifest.get("parts")
    if parts and size() == parts["size"]:
        # The states of all participating ranks are stored once if they are equal, hence the modulo.
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
    """Warn about values that may have differed on this rank, which did not take part in the save."""
    # Numbers and strings in trees are exempt: scripts use them as counters, which are equal on all ranks.
    if differs and any(entry["stream"] or name == "state" for name, entry in values.items()):
        warn(
            f"Checkpointer.restore: {path} was saved by {ranks_text(ranks)} alone, and rank {rank()} takes "
            f"rank 0's {item!r}. If it is something else on each rank, call save on all of them."
        )


def _folded(entry: SavedValue) -> SavedValue:
    value = decode(entry["value"])
    if isinstance(value, np.ndarray):  # a stream's count; its key differs already
        return entry
    fold = jax.random.fold_in
    for _ in value.shape:
        fold = jax.vmap(fold, (0, None))
    return {"value": encode(fold(value, rank()), "stream"), "stream": True}
