"""The catalogue, continued: products, convolutions, pooling, resizing, and where elements lie."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from .catalogue import Variation, afterwards, applying, arguments, calling
from .torch_trace import Op


def linear(op: Op) -> Iterator[Variation]:
    given = arguments(op)
    weight, bias = given["weight"], given.get("bias")
    if weight.shape[0] == weight.shape[1]:
        yield calling("the kernel is the transpose of torch's weight (it is not transposed)", weight=weight.T)
    if bias is not None:
        yield calling("the bias is added (it is not)", bias=None)
    for count in (2, 3, 4):
        yield from _blocks("kernel", weight, count)


def _blocks(what: str, weight: torch.Tensor, count: int) -> Iterator[Variation]:
    """The outputs in `count` blocks (query, key, value; gates) in another order."""
    if weight.shape[0] % count:
        return
    for order in itertools.permutations(range(count)):
        if order == tuple(range(count)):
            continue

        def change(function: Any, args: tuple, kwargs: dict, order: tuple = order) -> Any:
            given = arguments(Op(0, function, args, kwargs))
            moved = {
                name: torch.cat([given[name].chunk(count)[i] for i in order])
                for name in ("weight", "bias")
                if given.get(name) is not None
            }
            return function(**{**given, **moved})

        yield Variation(
            f"the {count} blocks of the {what} are in torch's order (they are in order {order})", change
        )


def convolution(op: Op) -> Iterator[Variation]:
    given = arguments(op)
    x, weight = given["input"], given["weight"]
    space = tuple(range(2, weight.ndim))
    if given.get("bias") is not None:
        yield calling("the bias is added (it is not)", bias=None)
    yield calling("the kernel is not flipped (it is, in space)", weight=weight.flip(space))
    if len(space) == 2 and weight.shape[2] == weight.shape[3]:
        yield calling(
            "the kernel's axes are (height, width) (they are swapped)", weight=weight.transpose(2, 3)
        )
    if weight.shape[0] == weight.shape[1]:
        yield calling("the kernel's axes are (in, out) (they are swapped)", weight=weight.transpose(0, 1))
    if "output_padding" in given or op.name.startswith("conv_transpose"):
        yield from _transposed(op)
        return
    yield from _padded_same(op, x, weight, given)


def _padded_same(op: Op, x: torch.Tensor, weight: torch.Tensor, given: dict[str, Any]) -> Iterator[Variation]:
    """Flax's default: as much padding as gives ceil(n / stride), the odd one at the end."""
    n = weight.ndim - 2
    stride, padding, dilation = (
        _each(given.get(k, d), n) for k, d in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    same: list[int] = []
    for size, k, s, d in zip(x.shape[2:], weight.shape[2:], stride, dilation, strict=True):
        total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
        same = [total // 2, total - total // 2, *same]

    def change(function: Any, args: tuple, kwargs: dict) -> Any:
        now = arguments(Op(0, function, args, kwargs))
        return function(**{**now, "input": F.pad(now["input"], same), "padding": 0})

    right = [(p, p) for p in padding] if not isinstance(given.get("padding"), str) else given["padding"]
    yield Variation(f"padding={right} (it acts as 'SAME')", change)
    yield calling(f"padding={right} (it acts as 'VALID')", padding=0)


def _transposed(op: Op) -> Iterator[Variation]:
    """Flax without transpose_kernel=True, and its paddings."""
    given = arguments(op)
    n = given["weight"].ndim - 2
    right = _each(given.get("padding", 0), n)
    for p in range(max(given["weight"].shape[2:])):
        if p != right[0]:
            yield calling(f"padding for torch's {right[0]} (it acts as {p})", padding=p)
    for p in (0, 1):
        yield calling(f"output_padding={given.get('output_padding', 0)} (it acts as {p})", output_padding=p)


def _each(value: Any, n: int) -> tuple:
    if isinstance(value, str):
        return (value,) * n
    return (value,) * n if isinstance(value, int) else tuple(value) * (n // len(value))


def average_pool(op: Op) -> Iterator[Variation]:
    given = arguments(op)
    right = given.get("count_include_pad", True)
    yield calling(f"count_include_pad={right} (it acts as {not right})", count_include_pad=not right)
    yield from _pool(op)


def _pool(op: Op) -> Iterator[Variation]:
    given = arguments(op)
    kernel = given["kernel_size"]
    stride = given.get("stride") or kernel
    yield calling(f"strides={stride} (it acts as 1)", stride=1)
    yield calling(f"ceil_mode={given.get('ceil_mode', False)}", ceil_mode=not given.get("ceil_mode", False))
    other = F.avg_pool2d if "max" in op.name else F.max_pool2d
    if op.args[0].ndim == 4:
        yield applying(
            f"{op.name} (it acts as {other.__name__})",
            lambda *args, **kwargs: other(given["input"], kernel, stride, given.get("padding", 0)),
        )


def max_pool(op: Op) -> Iterator[Variation]:
    yield from _pool(op)


def interpolate(op: Op) -> Iterator[Variation]:
    given = arguments(op)
    mode, corners = given["mode"], bool(given["align_corners"])
    if mode in ("linear", "bilinear", "bicubic", "trilinear"):
        yield calling(f"align_corners={corners} (it acts as {not corners})", align_corners=not corners)
    if mode in ("bilinear", "bicubic"):
        yield calling(
            f"antialias={given['antialias']} (it acts as {not given['antialias']}, or as a=-0.5)",
            antialias=not given["antialias"],
        )
    for other in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        if other != mode:
            yield calling(f"mode={mode!r} (it acts as {other!r})", mode=other, align_corners=None)


def flatten(op: Op) -> Iterator[Variation]:
    """Channels first in torch, channels last in Flax, and then one axis."""
    x = op.args[0]
    if not isinstance(x, torch.Tensor) or x.ndim < 3:
        return

    def change(function: Any, args: tuple, kwargs: dict) -> Any:
        return function(args[0].movedim(1, -1), *args[1:], **kwargs)

    yield Variation(
        "features are flattened as (C, *S): x.transpose(0, 3, 1, 2) first (they are flattened as (*S, C))",
        change,
    )


def reshape(op: Op) -> Iterator[Variation]:
    """Heads and their size, in one axis or the other way round."""
    yield from flatten(op)
    shape = op.args[1:] if len(op.args) > 1 else ()
    shape = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else tuple(shape)
    if len(shape) < 4 or not all(isinstance(n, int) for n in shape):
        return
    a, b = shape[-2:]

    def change(function: Any, args: tuple, kwargs: dict) -> Any:
        return args[0].reshape(*shape[:-2], b, a).transpose(-1, -2)

    yield Variation("the last axis is split into (heads, size) (it is split into (size, heads))", change)


def pieces(op: Op) -> Iterator[Variation]:
    """chunk, split and unbind: query, key and value, or gates, in another order."""
    found = op.function(*op.args, **op.kwargs)
    if not isinstance(found, tuple | list) or len(found) > 4 or len({x.shape for x in found}) != 1:
        return
    for order in itertools.permutations(range(len(found))):
        if order != tuple(range(len(found))):
            yield afterwards(
                f"the pieces of {op.name} are in torch's order (they are in order {order})",
                partial(_reordered, order),
            )


def _reordered(order: tuple[int, ...], parts: Any) -> tuple:
    return tuple(parts[i] for i in order)


def concatenation(op: Op) -> Iterator[Variation]:
    yield Variation(
        f"the parts of {op.name} are in torch's order (they are reversed)",
        lambda function, args, kwargs: function(list(args[0])[::-1], *args[1:], **kwargs),
    )


def binary(op: Op) -> Iterator[Variation]:
    """A residual, a scale or an offset that is not there."""
    words = {"add": "added", "mul": "multiplied", "sub": "subtracted", "div": "divided", "truediv": "divided"}
    verb = words[op.name.strip("_").removeprefix("r").removeprefix("i")]
    for i in (0, 1):
        if len(op.args) > 1 and isinstance(op.args[i], torch.Tensor):
            result = op.function(*op.args, **op.kwargs)
            if op.args[i].shape == result.shape:
                yield Variation(
                    f"the other operand is {verb} (it is left out)",
                    partial(_operand, i),
                )


def _operand(i: int, function: Any, args: tuple, kwargs: dict) -> Any:
    return args[i]


def reduction(op: Op) -> Iterator[Variation]:
    other = "sum" if "mean" in op.name else "mean"
    yield Variation(
        f"{op.name} (it acts as {other})",
        lambda function, args, kwargs: getattr(torch, other)(*args, **kwargs),
    )


def product(op: Op) -> Iterator[Variation]:
    b = op.args[1]
    if isinstance(b, torch.Tensor) and b.ndim > 1 and b.shape[-1] == b.shape[-2]:
        yield Variation(
            "the second factor of the product is not transposed (it is)",
            lambda function, args, kwargs: function(args[0], args[1].transpose(-1, -2), **kwargs),
        )


def embedding(op: Op) -> Iterator[Variation]:
    given = arguments(op)
    weight = given["weight"]
    yield afterwards(
        "the embedding is not scaled (it is multiplied by the root of its size)",
        lambda y: y * weight.shape[1] ** 0.5,
    )
    last = weight.shape[0] - 1
    for shift in (1, -1):
        yield calling(
            f"indices start at 0 (they are shifted by {shift})", input=(given["input"] + shift).clamp(0, last)
        )
