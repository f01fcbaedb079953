"""Mistakes with axes: exchanged axes of equal length, which raise no error, and wrong reductions."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from functools import partial

import torch

from ...._typing import PyTree
from ..torch_trace import Function, Op
from .variation import Kwargs, Variation, afterwards, applying


def equal(x: object) -> Iterator[tuple[int, int]]:
    """Yield the pairs of axes that can be swapped without changing the shape."""
    if isinstance(x, torch.Tensor):
        pairs = itertools.combinations(range(x.ndim), 2)
        yield from ((a, b) for a, b in pairs if x.shape[a] == x.shape[b] > 1)


def moved(op: Op) -> Iterator[Variation]:
    """transpose, permute, movedim: left out, or applied to other axes."""
    operand = op.args[0]
    if isinstance(operand, torch.Tensor) and operand.shape == op.result.shape:
        yield applying(f"{op.name} is done (it is left out)", lambda x, *args, **kwargs: x)
    for a, b in equal(op.result):
        text = f"the axes after {op.name} are torch's (axes {a} and {b} are swapped)"
        yield afterwards(text, partial(torch.transpose, dim0=a, dim1=b))


def heads(op: Op) -> Iterator[Variation]:
    """view, reshape: heads split or joined in a different order, which raises no error."""
    x, shape = op.args[0], op.result.shape
    if not isinstance(x, torch.Tensor) or x.ndim == 0:
        return
    if len(shape) > x.ndim:
        for axis in range(len(shape) - 1):
            first, second = shape[axis : axis + 2]
            if first > 1 and second > 1:
                text = f"an axis is split into ({first}, {second}) (it is split into ({second}, {first}))"
                yield afterwards(text, partial(_split_crosswise, axis))
    if len(shape) < x.ndim:
        for a, b in itertools.combinations(range(x.ndim), 2):
            if x.shape[a] > 1 and x.shape[b] > 1:
                text = f"the axes that {op.name} joins are in torch's order (axes {a} and {b} are swapped)"
                yield applying(text, lambda x, *args, a=a, b=b, **kwargs: x.transpose(a, b).reshape(shape))


def _split_crosswise(axis: int, x: torch.Tensor) -> torch.Tensor:
    """Read x, [..., first, second, ...], as [..., second, first, ...] and transpose."""
    shape = list(x.shape)
    shape[axis : axis + 2] = shape[axis + 1], shape[axis]
    return x.reshape(shape).transpose(axis, axis + 1)


def reduced(op: Op) -> Iterator[Variation]:
    """mean, sum, amax, norm, cumsum: over different axes."""
    bound = _arguments(op)
    dim, x = bound.get("dim"), op.args[0]
    if dim is None or not isinstance(x, torch.Tensor):
        return
    right = tuple(d % x.ndim for d in ((dim,) if isinstance(dim, int) else dim))
    for other in itertools.combinations(range(x.ndim), len(right)):
        if other != tuple(sorted(right)):
            value = other[0] if isinstance(dim, int) else other
            yield Variation(f"{op.name} over axis {dim} (it acts on axis {value})", partial(_over, value))


def _arguments(op: Op) -> Kwargs:
    names = ("input", "p", "dim", "keepdim") if op.name == "norm" else ("input", "dim", "keepdim")
    if (
        op.name in ("max", "min", "amax", "amin")
        and len(op.args) > 1
        and not isinstance(op.args[1], int | tuple)
    ):
        return {}  # of two tensors
    try:
        return dict(inspect.signature(op.function).bind(*op.args, **op.kwargs).arguments)
    except (TypeError, ValueError):
        return dict(zip(names, op.args, strict=False)) | op.kwargs


def _over(axis: int | tuple[int, ...], function: Function, args: tuple, kwargs: Kwargs) -> PyTree:
    if "dim" in kwargs:
        return function(*args, **{**kwargs, "dim": axis})
    dim_index = 2 if getattr(function, "__name__", "") == "norm" else 1
    return function(*args[:dim_index], axis, *args[dim_index + 1 :], **kwargs)


def spread(op: Op) -> Iterator[Variation]:
    """var, std: torch divides by n - 1, jax.numpy by n."""
    yield from reduced(op)
    bound = _arguments(op)
    dim, keep = bound.get("dim"), bool(op.kwargs.get("keepdim", False))
    unbiased = op.kwargs.get("unbiased", op.kwargs.get("correction", 1) != 0)
    right, wrong = ("n - 1", "n") if unbiased else ("n", "n - 1")
    function = torch.var if "var" in op.name else torch.std
    dim = None if isinstance(dim, bool) else dim
    yield applying(
        f"{op.name} divides by {right} (it divides by {wrong}): ddof={int(bool(unbiased))}",
        lambda x, *args, **kwargs: function(x, dim=dim, correction=int(not unbiased), keepdim=keep),
    )


def repeated(op: Op) -> Iterator[Variation]:
    """repeat, repeat_interleave: shared key heads as a, a, b, b in one and a, b, a, b in the other."""
    x, result = op.args[0], op.result
    axes = [i for i in range(x.ndim) if result.ndim == x.ndim and result.shape[i] != x.shape[i]]
    if len(axes) == 1:
        (axis,) = axes
        times = result.shape[axis] // x.shape[axis]
        if op.name == "repeat_interleave":
            text = "heads are repeated as a, a, b, b (as a, b, a, b)"
            yield applying(text, lambda x, *args, **kwargs: torch.cat([x] * times, axis))
        else:
            text = "heads are repeated as a, b, a, b (as a, a, b, b)"
            yield applying(text, lambda x, *args, **kwargs: x.repeat_interleave(times, axis))


def norm_axis(op: Op) -> Iterator[Variation]:
    """layer_norm, rms_norm: over a different axis of the same length."""
    x = op.args[0]
    for a, b in equal(x):
        if b == x.ndim - 1:
            text = f"{op.name} over the last axis (it acts on axis {a})"
            yield Variation(text, partial(_with_last, a))


def _with_last(axis: int, function: Function, args: tuple, kwargs: Kwargs) -> PyTree:
    return function(args[0].transpose(axis, -1), *args[1:], **kwargs).transpose(axis, -1)
