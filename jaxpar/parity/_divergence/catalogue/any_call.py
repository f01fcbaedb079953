"""Mistakes in the result of any function, for those without an entry."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import partial

import torch

from ..._sides.torch_float64 import rounded
from ..torch_trace import Op
from . import axes, masks, positions, scales
from .variation import Variation, afterwards

SILENT = {"size", "dim", "numel", "__len__", "item", "stride", "is_floating_point", "requires_grad_"}


def anything(op: Op) -> Iterator[Variation]:
    """Yield changes to the result: shifts of integers, visibility of masks, scale and order of floats."""
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
