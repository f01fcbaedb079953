"""Mistakes in calls without an entry: in any result, and in activations written by hand."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from ..._sides.torch_float64 import rounded
from ..torch_trace import Op
from . import axes, masks, positions, scales
from .layers import ACTIVATIONS
from .variation import Variation, afterwards, replacing

SILENT = {"size", "dim", "numel", "__len__", "item", "stride", "is_floating_point", "requires_grad_"}


def anything(ops: Sequence[Op], index: int) -> Iterator[Variation]:
    """Yield changes to the result: shifts of integers, visibility of masks, scale and order of floats."""
    op = ops[index]
    x = op.result
    if op.name in SILENT or not isinstance(x, torch.Tensor) or x.ndim == 0 or x.numel() < 2:
        return
    for a, b in axes.equal(x):
        text = f"the result of {op.name} has torch's axes (axes {a} and {b} are swapped)"
        yield afterwards(text, partial(torch.transpose, dim0=a, dim1=b))
    if x.dtype == torch.bool:
        for text, change in masks.changes(x):
            yield afterwards(text, change)
        yield afterwards(f"the result of {op.name} is torch's (it is inverted)", torch.logical_not)
    elif not x.is_floating_point():
        yield from positions.shifted(op)
    else:
        yield from _of_floats(op, x)


def _of_floats(op: Op, x: torch.Tensor) -> Iterator[Variation]:
    for scale_name, scale in scales.roots(x.shape[-1:]).items():
        text = f"the result of {op.name} is not scaled (it is multiplied by {scale_name})"
        yield afterwards(text, partial(operator.mul, scale))
    for axis in range(x.ndim):
        if x.shape[axis] > 1:
            text = f"the result of {op.name} has torch's order (it is reversed along axis {axis})"
            yield afterwards(text, partial(torch.flip, dims=(axis,)))
            for by in (1, -1):
                text = f"the result of {op.name} has torch's places (it is rolled by {by} along axis {axis})"
                yield afterwards(text, partial(torch.roll, shifts=by, dims=axis))
    for dtype in ("float32", "float16", "bfloat16"):
        if not torch.equal(rounded(x, dtype), x):
            text = f"the result of {op.name} keeps its digits (it is rounded to {dtype}, as a saved table)"
            yield afterwards(text, partial(rounded, dtype=dtype))


ARRAYS = 8  # of one shape that a call may take in the place of its own: the nearest ones


def other_arrays(users: Sequence[Op], ops: Sequence[Op], index: int) -> Iterator[Variation]:
    """Yield calls that take an array of the same shape which one of the users takes: a wrong variable."""
    op = ops[index]
    near = sorted(users, key=lambda user: abs(user.index - op.index))
    for position, argument in enumerate(op.args):
        if not _is_real(argument):
            continue
        tried = {id(argument), id(op.result)}
        for user in near:
            for x in user.args:
                if _is_real(x) and x.shape == argument.shape and id(x) not in tried and len(tried) < ARRAYS:
                    tried.add(id(x))
                    where = f"{user.name}, {user.line}" if user.line else user.name
                    text = f"{op.name} takes torch's array (it takes what {where} takes)"
                    yield replacing(text, position, lambda _, x=x: x)


REACH = 16  # how many calls back the activation's argument may be; gelu's tanh form takes eight
SAMPLE = 64


def by_hand(ops: Sequence[Op], end: int, direct: frozenset[str]) -> Iterator[Variation]:
    """Yield wrong activations for ops[end] if it computes one; those named in `direct` have an entry."""
    op = ops[end]
    y = op.result
    if op.name in direct or not _is_real(y):
        return
    tried: set[int] = set()
    for earlier in reversed(ops[max(0, end - REACH) : end + 1]):
        for x in (*earlier.args, earlier.result if earlier is not op else None):
            if _is_real(x) and x.shape == y.shape and x is not y and id(x) not in tried:
                tried.add(id(x))
                yield from _others(x.detach(), y.detach())


def _is_real(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel() > 3


def _others(x: torch.Tensor, y: torch.Tensor) -> Iterator[Variation]:
    sample = slice(None, None, max(1, x.numel() // SAMPLE))
    x_sample, y_sample = x.flatten()[sample], y.flatten()[sample]
    for name, function in ACTIVATIONS.items():
        # Any function that returns its argument would match the identity. The sample is cheaper.
        if name == "no activation" or not (_close(function(x_sample), y_sample) and _close(function(x), y)):
            continue
        argument = x.clone()
        for other, wrong in ACTIVATIONS.items():
            if other != name and not _close(wrong(argument), y):
                text = f"{name}, written by hand (it acts as {other})"
                yield Variation(text, lambda *call, wrong=wrong, x=argument: wrong(x))
        return


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() <= 1e-12 * b.abs().max().clamp(1e-30))
