"""Mistakes with positions: a different start, the reverse order, different indices, and rotary pairs."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import partial
from numbers import Real
from typing import Any

import torch

from ..torch_trace import Op
from .variation import Variation, afterwards, applying, replacing

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


INDEXED = {"__getitem__": 1} | dict.fromkeys(
    (
        *("gather", "index_select", "index_add", "index_add_", "scatter", "scatter_", "scatter_add"),
        *("scatter_add_", "scatter_reduce", "scatter_reduce_", "index_reduce", "index_reduce_"),
    ),
    2,
)
"""Functions that take an index, and the position of that argument."""


def exchanged_indices(ops: Sequence[Op], index: int) -> Iterator[Variation]:
    """x[source], index_add(target): the two ends of a graph's edges. All calls are wrong together."""
    indices = _index_of(ops[index])
    if indices is None:
        return
    arrays: list[torch.Tensor] = []
    for array in map(_index_of, ops):
        if (
            array is not None
            and array.shape == indices.shape
            and not any(torch.equal(array, a) for a in arrays)
        ):
            arrays.append(array)
    if len(arrays) == 2:
        other = arrays[torch.equal(indices, arrays[0])]
        text = "the two arrays of indices are in torch's places (they are exchanged)"
        yield replacing(text, INDEXED[ops[index].name], partial(_with_index, other))


def _index_of(op: Op) -> torch.Tensor | None:
    position = INDEXED.get(op.name, len(op.args))
    argument = op.args[position] if position < len(op.args) else None
    arrays = [x for x in (argument if isinstance(argument, tuple) else [argument]) if _is_index(x)]
    return arrays[0] if len(arrays) == 1 else None


def _is_index(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.ndim > 0 and x.dtype in (torch.int64, torch.int32)


def _with_index(index: torch.Tensor, argument: Any) -> Any:
    if not isinstance(argument, tuple):
        return index
    return tuple(index if _is_index(part) else part for part in argument)


BASES = (10000, 500000, 1000000, 100000, 1000, 100, 10, 2)


def base(op: Op) -> Iterator[Variation]:
    """pow, __rpow__: the number of which the frequencies of rotary and sinusoidal positions are powers."""
    numbers = [n for n, x in enumerate(op.args[:2]) if isinstance(x, Real)]
    if numbers != [1 if op.name == "__rpow__" else 0]:
        return
    right = op.args[numbers[0]]
    for other in map(type(right), BASES):
        if other != right:
            yield replacing(f"base={right} (it acts as {other})", numbers[0], lambda _, other=other: other)


def negated(op: Op) -> Iterator[Variation]:
    """neg: a rotation in the opposite direction."""
    yield applying("the sign is turned (it is not)", lambda x, *args, **kwargs: x)


def taken(op: Op) -> Iterator[Variation]:
    """x[:, 0], x[:, 1:]: a different element of an axis, or a range that is shifted by one."""
    if not op.args[0].is_floating_point():
        return  # `shifted` describes a table of positions
    key = op.args[1]
    keys = key if isinstance(key, tuple) else (key,)
    for axis, part in enumerate(keys):
        for other in _other_keys(part):
            instead = (*keys[:axis], other, *keys[axis + 1 :])
            text = f"[{_shown(keys)}] (it acts as [{_shown(instead)}])"
            yield replacing(text, 1, lambda _, instead=instead: instead)


def _other_keys(part: Any) -> Iterator[Any]:
    if isinstance(part, int) and not isinstance(part, bool):
        yield from (index for index in (0, -1, part + 1, part - 1) if index != part)
    elif isinstance(part, slice) and part != slice(None):
        yield from _other_ranges(part.start or 0, part.stop, part.step)


def _other_ranges(start: int, stop: int | None, step: int | None) -> Iterator[slice]:
    """Yield ranges that are shifted, and those with another start or end, which a mean does not show."""
    # A shift across 0 would count from the other end of the axis.
    starts = [start + by for by in SHIFTS if (start < 0) == (start + by < 0)]
    if stop is None:
        yield from (slice(other, None, step) for other in dict.fromkeys([*starts, 0]) if other != start)
        return
    stops = [stop + by for by in SHIFTS if stop * (stop + by) > 0]
    moved = [slice(start + by, stop + by, step) for by in SHIFTS[:2] if start + by in starts]
    yield from (part for part in moved if part.stop in stops)
    yield from (slice(other, stop, step) for other in starts[:2])
    yield from (slice(start, other, step) for other in [*stops[:2], None])


def _shown(keys: tuple) -> str:
    return ", ".join(map(_shown_key, keys))


def _shown_key(part: Any) -> str:
    if isinstance(part, slice):
        bounds = f"{'' if part.start is None else part.start}:{'' if part.stop is None else part.stop}"
        return bounds if part.step is None else f"{bounds}:{part.step}"
    return "..." if part is Ellipsis else "an array" if isinstance(part, torch.Tensor) else str(part)


def rotary(ops: Sequence[Op], index: int) -> Iterator[Variation]:
    """cat, stack of (-b, a), and of a table with itself: which two elements of a head a rotation joins.

    A head's element i turns with i + size / 2, as in transformers, or 2 i with 2 i + 1, as in the paper. All
    calls of a rotation have one text, because these are wrong together.
    """
    op = ops[index]
    parts, dim = op.args[0], op.kwargs.get("dim", op.args[1] if len(op.args) > 1 else 0)
    if len(parts) != 2 or dim not in (-1, op.result.ndim - 1):
        return
    first, second = parts
    opposite = any(earlier.name == "neg" and earlier.result is first for earlier in ops[:index])
    if op.name != "stack":
        text = "a rotation joins the elements i and i + size / 2 (it joins 2 i and 2 i + 1)"
        if opposite:
            yield afterwards(text, _quarter_turn_of_neighbours)
        elif torch.equal(first, second):
            yield applying(text, lambda parts, *args, **kwargs: parts[0].repeat_interleave(2, -1))
    else:
        text = "a rotation joins the elements 2 i and 2 i + 1 (it joins i and i + size / 2)"
        if opposite:
            yield afterwards(text, _quarter_turn_of_halves)
        elif torch.equal(first, second):
            yield applying(text, lambda parts, *args, **kwargs: torch.cat(parts, -1).unflatten(-1, (-1, 2)))


def _quarter_turn_of_neighbours(turned: torch.Tensor) -> torch.Tensor:
    """Return (-x1, x0, -x3, x2, ...) of x, whose halves (a, b) were turned to (-b, a)."""
    b, a = turned.chunk(2, -1)
    x = torch.cat([a, -b], -1)
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def _quarter_turn_of_halves(turned: torch.Tensor) -> torch.Tensor:
    """Return (-b, a), [..., size / 2, 2], of x's halves (a, b), where x's neighbours were turned."""
    x = torch.stack([turned[..., 1], -turned[..., 0]], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1).unflatten(-1, (-1, 2))
