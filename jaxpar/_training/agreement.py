"""agreement: what all ranks must know before they run one program together.

torch's ranks agree on nothing: each runs its own hooks, and a rank that makes a different number of calls
waits for ever. Here the rows of all ranks go into one program, so every rank has to know the other ranks'
shapes. How it learns them is a strategy: outside of join all ranks have the same shapes, and only new ones
are compared; inside of join they may differ, and every step is announced.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from .._parallel.branch import Kind
from .divergence_guard import StepMetadata, compare
from .local_batch import LocalRows


class Agreement(NamedTuple):
    """One step, as all ranks know it.

    Attributes:
      kinds: the shapes of every replica's rows, None for a replica without.
      divisor: what the sum of the gradients is divided by.
      source: the replica whose buffers all get after the step; None leaves each process its own.
      buffers_from: the rank whose buffers all take before the step; None where they are equal already.
      keep: whether gradients stay on the replicas. A rank without rows learns it here.
    """

    kinds: tuple[Kind | None, ...]
    divisor: int
    source: int | None
    buffers_from: int | None = None
    keep: bool = False

    @property
    def active(self) -> tuple[int, ...]:
        """The replicas that have rows."""
        return tuple(i for i, kind in enumerate(self.kinds) if kind is not None)


class Strategy(Protocol):
    """How ranks agree on a step. `shares_buffers`: whether one replica's buffers are copied to all."""

    shares_buffers: bool

    def agree(self, rows: Any, metadata: StepMetadata | None, keep: bool) -> tuple[Agreement, Any] | None:
        """Return the agreement, and the rows with the shapes it requires; None when no rank has rows left.

        Args:
          metadata: this rank's step metadata besides its rows; None in a world of one process.
          keep: whether gradients stay on the replicas, so that nothing is averaged.
        """


class Alone:
    """A module of one process, whose batch is complete."""

    shares_buffers = False

    def agree(self, rows: Any, metadata: StepMetadata | None, keep: bool) -> tuple[Agreement, Any]:
        del metadata
        return Agreement((), 1, None, keep=keep), rows


class SameRows:
    """Every one of `ranks` ranks has rows of the same shapes, which torch's DDP assumes."""

    def __init__(self, ranks: int, shares_buffers: bool):
        self.ranks, self.shares_buffers = ranks, shares_buffers

    def agree(
        self, rows: LocalRows, metadata: StepMetadata | None, keep: bool
    ) -> tuple[Agreement, LocalRows]:
        """Raise DivergenceError where ranks differ."""
        if metadata is not None:
            compare(rows, metadata)
        kinds = rows.kinds * self.ranks
        active = sum(kind is not None for kind in kinds)
        source = 0 if self.shares_buffers and not keep else None
        return Agreement(kinds, active, source, keep=keep), rows
