"""join: ranks with different numbers of batches train together until the last one has finished.

As in torch, a rank without batches keeps taking part, with zeros. Every step is announced over the host
first, with the numbers of rows, so that all ranks run one program for the rows of all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .._devices.context import outside
from ..distributed.exchange import exchange, exhausted, is_over
from ..errors import DistributedError, DivergenceError
from .agreement import Agreement
from .divergence_guard import StepMetadata
from .engine_state import EngineState
from .local_batch import LocalRows
from .world import World

_WHAT = "DistributedDataParallel.join"


class Announced:
    """The strategy inside of join: every rank announces its rows to the others, or that it has none."""

    def __init__(
        self, world: World, timeout: float, divides_by_all: bool, throws: bool, shares_buffers: bool
    ):
        self._world, self._timeout = world, timeout
        self._divides_by_all, self._throws, self.shares_buffers = divides_by_all, throws, shares_buffers
        self.rows: LocalRows | None = None
        self.numbers: list[Any] = []  # of the rank in `last`, see `LocalRows.numbers`
        self.last = 0
        self.keeps_gradients = False

    def agree(
        self, rows: LocalRows, metadata: StepMetadata | None, keep: bool
    ) -> tuple[Agreement, LocalRows] | None:
        del metadata  # the announcement replaces it
        if rows.sizes:
            self.rows = rows
        agreed = self.announce(rows, keep)
        if agreed is None:
            return None
        # One program runs on all ranks, with the numbers of this step among its arguments, and with arrays of
        # the shapes of the largest pieces.
        if not rows.sizes:
            rows = rows.with_numbers(self.numbers)
        return agreed, rows.widened(agreed.kinds, self._world.local)

    def announce(self, rows: LocalRows | None, keep: bool = False) -> Agreement | None:
        """Return what all ranks contribute to one step; None when no rank has rows left."""
        announcement = _announcement(rows, keep) if rows and rows.sizes else {"never": self.rows is None}
        texts = exchange(_WHAT, json.dumps(announcement), self._timeout, self._world.group)
        announcements = [json.loads(text) for text in texts]
        if is_over(announcements):
            return None
        done = exhausted(announcements)
        self._check(announcements, done)
        self.last = max(r for r in range(len(announcements)) if r not in done)
        self.numbers = announcements[self.last].get("numbers", [])
        none = [None] * self._world.local.N
        by_rank = [none if r in done else message["kinds"] for r, message in enumerate(announcements)]
        pieces = [shapes for replicas in by_rank for shapes in replicas]
        kinds = tuple(None if shapes is None else tuple(map(tuple, shapes)) for shapes in pieces)
        active = sum(kind is not None for kind in kinds)
        divisor = self._world.N if self._divides_by_all else active
        # docs/semantics.md row J4: the buffers of the highest rank that has batches. As outside of join,
        # buffers are not shared after a step in no_sync.
        source = self.last if self.shares_buffers and not self.keeps_gradients else None
        # After `source`, which depends on the previous step.
        self.keeps_gradients = announcements[self.last]["keep"]
        return Agreement(kinds, divisor, None, source, self.keeps_gradients)

    def _check(self, announcements: Sequence[dict[str, Any]], done: Sequence[int]) -> None:
        if self._throws and done:  # docs/semantics.md row J6
            if self._world.rank in done:
                raise RuntimeError(f"Rank {self._world.rank} exhausted all inputs.")
            raise RuntimeError("Detected at least one rank that exhausted inputs. Throwing across all ranks.")
        if never := [r for r in done if announcements[r]["never"]]:
            raise DistributedError(
                f"join: rank {never[0]} left without any batch, and cannot take part in a step that it has "
                "never seen. Give every rank at least one batch."
            )
        first = next(r for r in range(len(announcements)) if r not in done)
        for r, message in enumerate(announcements):
            for what, value in message.get("same", {}).items():
                if value != announcements[first]["same"][what]:
                    raise DivergenceError(
                        f"join: {what} differs: rank {first} has {announcements[first]['same'][what]}, rank "
                        f"{r} has {value}. Ranks may differ in their numbers of rows only."
                    )


class Join:
    """`with net.join():`, torch's `torch.distributed.algorithms.Join` (docs/semantics.md rows J1-J7)."""

    def __init__(self, state: EngineState, world: World, divides_by_all: bool, enable: bool, throws: bool):
        self._state, self._enable = state, enable and world.size > 1
        shares_buffers = state.usual.shares_buffers
        self._strategy = Announced(world, state.timeout, divides_by_all, throws, shares_buffers)

    def __enter__(self) -> Join:
        if self._enable:
            self._state.strategy = self._strategy
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if not self._enable:
            return
        try:
            if kind is None:  # docs/semantics.md row J7: an exception does not wait for other ranks
                self._go_on()
        finally:
            # torch leaves its hooks in place (J5), and later steps take buffers from the highest rank.
            self._state.leave_join()

    @outside
    def _go_on(self) -> None:
        """Take part with zeros until no rank has batches left, then take the last rank's values."""
        engine, rows = self._state.engine, self._strategy.rows
        if rows is None:
            self._strategy.announce(None)  # raises, on all ranks, if any has batches
            return
        engine.drop()
        while engine.turn(rows.empty()) is not None:
            pass
        # docs/semantics.md row J3: parameters, and buffers where they are shared.
        values, _ = engine.arrays.take()
        engine.receive(values, self._strategy.last, buffers=self._strategy.shares_buffers, parameters=True)


def _announcement(rows: LocalRows, keep: bool) -> dict[str, Any]:
    same = rows.describe() | {"the mode": "no_sync()" if keep else "averaging"}
    # They may differ inside of join, and `kinds` has them.
    del same["the batch's shapes"]
    return {"kinds": rows.kinds, "keep": keep, "same": same, "numbers": rows.numbers}
