"""Positions: numbers that are counted, which ports begin elsewhere or count the other way."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import partial

import torch

from ..torch_trace import Op
from .variation import Variation, afterwards, applying

SHIFTS = (1, -1, 2, -2)
"""Two is what an encoder with a padding token begins with."""


def counted(op: Op) -> Iterator[Variation]:
    """arange, and sums along a mask that count what is kept."""
    yield from shifted(op)
    if op.name == "arange":
        yield afterwards("positions are counted by 1 (they are counted by 2)", lambda x: x * 2)


def shifted(op: Op) -> Iterator[Variation]:
    """Numbers of rows: an index, a position, a distance."""
    if not isinstance(op.result, torch.Tensor) or op.result.ndim == 0:
        return
    for shift in SHIFTS:
        text = f"positions are torch's (they are shifted by {shift})"
        yield afterwards(text, partial(operator.add, shift))
    yield afterwards("positions run upwards (they are reversed)", lambda x: x.flip(-1))
    # Indices behind the end: JAX takes the last row, and torch refuses.
    for shift in SHIFTS:
        text = f"positions are torch's (they are shifted by {shift} and clamped)"
        yield afterwards(text, partial(_clamped, shift))


def _clamped(shift: int, x: torch.Tensor) -> torch.Tensor:
    return (x + shift).clamp(int(x.min()), int(x.max()))


def difference(op: Op) -> Iterator[Variation]:
    """Distances from the key to the query, or the other way."""
    yield afterwards(f"the operands of {op.name} are in torch's order (they are swapped)", torch.neg)


def negated(op: Op) -> Iterator[Variation]:
    """A rotation that turns the other way."""
    yield applying("the sign is turned (it is not)", lambda x, *args, **kwargs: x)
