"""join: ranks with different numbers of batches train together until the last one has finished.

As in torch, a rank without batches goes on taking part, with zeros. Every step of the others is announced
over the host first, so that all ranks run one program for all their rows; the announcement carries the
numbers of rows, which in here may differ from rank to rank.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import jax
from flax import nnx

from .._parallel.program import Kind
from ..distributed._collectives import broadcast
from ..distributed.exchange import exchange
from ..errors import DistributedError, DivergenceError
from .engine import Agreement
from .held import Held
from .local_batch import Rows

_WHAT = "DistributedDataParallel.join"
Run = Callable[[Rows, Agreement], Any]


class Join:
    """`with net.join():`, see `DistributedDataParallel.join`.

    torch counterpart: `torch.distributed.algorithms.Join` (docs/semantics.md rows J1-J7).
    """

    def __init__(self, net: Any, divide_by_initial_world_size: bool, enable: bool, throw: bool):
        self.net, self.world, self.memory = net, net.world, net.memory
        self.initial, self.throw = divide_by_initial_world_size, throw
        self.enable = enable and self.world.size > 1
        self.run: Run | None = None
        self.rows: Rows | None = None
        self.last: int = 0

    def __enter__(self) -> Join:
        if self.enable:
            self.memory.join = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.enable:
            return
        try:
            # docs/semantics.md row J7: after an exception nobody is waited for.
            if kind is None:
                self._shadow()
        finally:
            # torch leaves its hooks in place (J5), and later steps take buffers from the highest rank.
            self.memory.join = None

    def step(self, rows: Rows, held: Held, run: Callable[[Held, Rows, Agreement], Any]) -> Any:
        """One step of a rank that has rows: `run(held, rows, agreement)` with what all ranks bring."""
        if not self.memory.synchronises:
            raise RuntimeError("join: no_sync() cannot be used in here; accumulate outside of join.")
        self.rows, self.run = rows, functools.partial(run, held)
        agreed = self._round(rows)
        assert agreed is not None
        held = self._with_buffers(held)
        return run(held, rows.widened(agreed.kinds, self.world.local), agreed)

    def _shadow(self) -> None:
        """Takes part with zeros until no rank has batches any more, then takes the last one's values."""
        while (agreed := self._round(None)) is not None:
            assert self.run is not None
            assert self.rows is not None
            self._with_buffers(self.net.held(nnx.Param))
            self.run(self.rows.empty().widened(agreed.kinds, self.world.local), agreed)
        self._take_values()

    # ------------------------------------------------------------------------------ what ranks tell
    def _round(self, rows: Rows | None) -> Agreement | None:
        """All ranks' rows for one step; None when no rank has any."""
        mine = {"never": self.rows is None} if rows is None else _announce(rows)
        told = [json.loads(text) for text in exchange(_WHAT, json.dumps(mine), timeout=self.memory.timeout)]
        done = [r for r, said in enumerate(told) if "kinds" not in said]
        if len(done) == len(told):
            return None
        self._check(told, done)
        self.last = max(r for r in range(len(told)) if r not in done)
        none = [None] * self.world.local.N
        kinds = tuple(_kind(k) for r, said in enumerate(told) for k in (none if r in done else said["kinds"]))
        active = sum(kind is not None for kind in kinds)
        return Agreement(kinds, self.world.N if self.initial else active, None)

    def _check(self, told: Sequence[dict[str, Any]], done: Sequence[int]) -> None:
        if self.throw and done:  # docs/semantics.md row J6
            if self.world.rank in done:
                raise RuntimeError(f"Rank {self.world.rank} exhausted all inputs.")
            raise RuntimeError("Detected at least one rank that exhausted inputs. Throwing across all ranks.")
        if never := [r for r in done if told[r]["never"]]:
            raise DistributedError(
                f"join: rank {never[0]} left without any batch, and cannot take part in a step that it has "
                "never seen. Give every rank at least one batch."
            )
        first = next(r for r in range(len(told)) if r not in done)
        for r, said in enumerate(told):
            for what, value in said.get("same", {}).items():
                if value != told[first]["same"][what]:
                    raise DivergenceError(
                        f"join: {what} differs: rank {first} has {told[first]['same'][what]}, rank {r} has "
                        f"{value}. Ranks may differ in their numbers of rows only."
                    )

    # ----------------------------------------------------------------------------- what ranks share
    def _with_buffers(self, held: Held) -> Held:
        """The module with the buffers of the highest rank that has batches (docs/semantics.md row J4)."""
        which = [i for i in range(len(held.values)) if i not in held.parameters]
        if not which or not self.net.settings.forward_sync_buffers:
            return held
        self._take(held, which)
        return self.net.held(nnx.Param)

    def _take_values(self) -> None:
        """Parameters, and buffers, of the rank that finished last (docs/semantics.md row J3)."""
        held = self.net.held(nnx.Param)
        every = range(len(held.values)) if self.net.settings.forward_sync_buffers else held.parameters
        self._take(held, list(every))

    def _take(self, held: Held, which: list[int]) -> None:
        values = broadcast([held.values[i] for i in which], src=self.last)
        values = jax.device_put(values, self.world.local.replicated)
        held.commit(dict(zip(which, values, strict=True)))


def _announce(rows: Rows) -> dict[str, Any]:
    same = rows.describe()
    del same["the batch's shapes"]
    return {"kinds": rows.kinds, "same": same}


def _kind(told: Any) -> Kind | None:
    return None if told is None else tuple(tuple(shape) for shape in told)
