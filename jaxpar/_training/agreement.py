"""agreement: what all ranks must know before they run one program together: the shapes of all ranks' rows."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from .._parallel.branch import Kind
from .divergence_guard import StepMetadata, compare
from .local_batch import LocalRows


class Agreement(NamedTuple):
    kinds: tuple[Kind | None, ...]  # the shapes of every replica's rows, None for a replica without
    divisor: int  # what the sum of the gradients is divided by
    source: int | None  # the replica whose buffers all get after the step; None: each process keeps its own
    buffers_from: int | None = None  # the rank whose buffers all take before the step; None: they are equal
    keep: bool = False  # whether gradients stay on the replicas; a rank without rows learns it here

    @property
    def active(self) -> tuple[int, ...]:
        return tuple(i for i, kind in enumerate(self.kinds) if kind is not None)


class Strategy(Protocol):
    """How ranks agree on a step."""

    shares_buffers: bool  # whether one replica's buffers are copied to all

    def agree(self, rows: Any, metadata: StepMetadata | None, keep: bool) -> tuple[Agreement, Any] | None:
        """Return the agreement, and the rows with the shapes it requires; None when no rank has rows left.

        `metadata` is this rank's step metadata besides its rows; None in a world of one process.
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
        if metadata is not None:
            compare(rows, metadata)
        kinds = rows.kinds * self.ranks
        active = sum(kind is not None for kind in kinds)
        source = 0 if self.shares_buffers and not keep else None
        return Agreement(kinds, active, source, keep=keep), rows
