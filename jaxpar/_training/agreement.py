"""agreement: what all ranks must know before they run one program together.

torch's ranks agree on nothing: each runs its own hooks, and a rank that makes another number of calls waits
for ever. Here the rows of all ranks are one program's, so every rank has to know what the others bring. How
it learns that is a strategy: outside of join all bring the same, and only what nobody has seen yet is
compared; inside of join they may differ, and every step is announced.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from .._parallel.program import Kind
from .divergence_guard import Said, compare
from .local_batch import Rows


class Agreement(NamedTuple):
    """What all ranks know of one step.

    Attributes:
      kinds: the shapes of every replica's rows, None for one without.
      divisor: what the sum of the gradients is divided by.
      source: the replica whose buffers all get after the step; None leaves each process its own.
      buffers_from: the rank whose buffers all take before the step; None where they are equal already.
    """

    kinds: tuple[Kind | None, ...]
    divisor: int
    source: int | None
    buffers_from: int | None = None

    @property
    def active(self) -> tuple[int, ...]:
        """The replicas that have rows."""
        return tuple(i for i, kind in enumerate(self.kinds) if kind is not None)


class Engine(Protocol):
    """Who asks for an agreement: the engine, seen from below."""

    @property
    def world_size(self) -> int: ...

    def said(self, keep: bool) -> Said:
        """What has to be the same on all ranks, beside the rows."""

    def turn(self, batch: Any, keep: bool = False) -> Any:
        """One step."""

    def receive(self, src: int, *, buffers: bool, parameters: bool = False) -> bool:
        """Takes arrays of the module from another rank."""


class Strategy(Protocol):
    """How ranks agree on a step. `shares_buffers`: whether one replica's buffers become everybody's."""

    shares_buffers: bool

    def agree(self, engine: Engine, rows: Any, keep: bool) -> tuple[Agreement, Any] | None:
        """The agreement, and the rows in the form that it wants; None when no rank has rows any more.

        `keep` says that gradients stay on the replicas: no other rank takes part in the step.
        """


class Alone:
    """A module of one process, whose batch is whole."""

    shares_buffers = False

    def agree(self, engine: Engine, rows: Any, keep: bool) -> tuple[Agreement, Any]:
        del engine, keep
        return Agreement((), 1, None), rows


class SameRows:
    """Every rank brings rows of the same shapes, as torch's DDP takes for granted."""

    def __init__(self, shares_buffers: bool):
        self.shares_buffers = shares_buffers

    def agree(self, engine: Engine, rows: Rows, keep: bool) -> tuple[Agreement, Rows]:
        """Raises DivergenceError where ranks differ."""
        if engine.world_size > 1:
            compare(rows, engine.said(keep))
        kinds = rows.kinds * engine.world_size
        active = sum(kind is not None for kind in kinds)
        source = 0 if self.shares_buffers and not keep else None
        return Agreement(kinds, active, source), rows
