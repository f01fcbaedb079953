"""Mistakes with positions: a different start, or the reverse order."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import partial

import torch

from ..torch_trace import Op
from .variation import Variation, afterwards, applying

SHIFTS = (1, -1, 2, -2)  # encoders with a padding token start at 2


def counted(op: Op) -> Iterator[Variation]:
    """arange, cumsum: positions, or a count of unmasked tokens."""
    yield from shifted(op)
    if op.name == "arange":
        yield afterwards("positions are counted by 1 (they are counted by 2)", lambda x: x * 2)


def shifted(op: Op) -> Iterator[Variation]:
    """Yield shifted and reversed integers: indices, positions, distances."""
    if not isinstance(op.result, torch.Tensor) or op.result.ndim == 0:
        return
    for shift in SHIFTS:
        text = f"positions are torch's (they are shifted by {shift})"
        yield afterwards(text, partial(operator.add, shift))
    yield afterwards("positions run upwards (they are reversed)", lambda x: x.flip(-1))
    # JAX clamps an index past the end to the last row, and torch raises.
    for shift in SHIFTS:
        text = f"positions are torch's (they are shifted by {shift} and clamped)"
        yield afterwards(text, lambda x, shift=shift: (x + shift).clamp(int(x.min()), int(x.max())))


def difference(op: Op) -> Iterator[Variation]:
    """sub: distances from key to query, or from query to key."""
    yield afterwards(f"the operands of {op.name} are in torch's order (they are swapped)", torch.neg)


def negated(op: Op) -> Iterator[Variation]:
    """neg: a rotation in the opposite direction."""
    yield applying("the sign is turned (it is not)", lambda x, *args, **kwargs: x)
