"""Mistakes with convolutions, pooling, resizing, products, and the order of elements."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch.nn import functional as F

from ...._typing import PyTree
from ..torch_trace import Function, Op
from .variation import (
    Kwargs,
    Variation,
    acting_as,
    afterwards,
    applying,
    arguments,
    arguments_of,
    calling,
    orders,
    recalling,
    recalling_then,
    replacing,
)


def convolution(op: Op) -> Iterator[Variation]:
    bound = arguments_of(op)
    weight = bound["weight"]
    space = tuple(range(2, weight.ndim))
    if bound.get("bias") is not None:
        yield calling("the bias is added (it is not)", bias=None)
    yield calling("the kernel is not flipped (it is, in space)", weight=weight.flip(space))
    if len(space) == 2 and weight.shape[2] == weight.shape[3]:
        swapped = weight.transpose(2, 3)
        yield calling("the kernel's axes are (height, width) (they are swapped)", weight=swapped)
    if weight.shape[0] == weight.shape[1]:
        yield calling("the kernel's axes are (in, out) (they are swapped)", weight=weight.transpose(0, 1))
    yield from _transposed(bound) if op.name.startswith("conv_transpose") else _padded(bound)


def _padded(bound: Kwargs) -> Iterator[Variation]:
    """Pad as Flax's default, SAME: ceil(n / stride) outputs, with the odd element of padding at the end."""
    x, weight = bound["input"], bound["weight"]
    n = weight.ndim - 2
    defaults = {"stride": 1, "padding": 0, "dilation": 1}
    stride, padding, dilation = (_per_axis(bound.get(name, value), n) for name, value in defaults.items())
    same = _same_padding(x.shape[2:], weight.shape[2:], stride, dilation)
    right = bound["padding"] if isinstance(bound.get("padding"), str) else [(p, p) for p in padding]
    text = f"padding={right} (it acts as 'SAME')"
    yield recalling(text, partial(_padded_by, same))
    yield calling(f"padding={right} (it acts as 'VALID')", padding=0)
    if all(isinstance(p, int) for p in padding) and any(padding):
        for side, shares in {"before": (2, 0), "after": (0, 2)}.items():
            # A causal convolution pads before its input only.
            pads = [share * p for p in reversed(padding) for share in shares]
            yield recalling(f"padding={right} (all of it is {side} the input)", partial(_padded_by, pads))
        yield from _off_center(padding, right)
        if any(d > 1 for d in dilation):
            sizes = zip(padding, dilation, weight.shape[2:], strict=True)
            less = tuple(p - (d - 1) * (k - 1) // 2 for p, d, k in sizes)
            yield calling(f"dilation={dilation} (it acts as 1)", dilation=1, padding=less)


def _off_center(padding: Sequence[int], right: object) -> Iterator[Variation]:
    """Move the input by one place, along one axis or along all of them."""
    axes = range(len(padding))
    for moved in [axes, *([axis] for axis in axes)] if len(padding) > 1 else [axes]:
        for by in (1, -1):
            pads = [(p - by, p + by) if n in moved and p else (p, p) for n, p in enumerate(padding)]
            flat = [edge for pair in reversed(pads) for edge in pair]
            yield recalling(f"padding={right} (it acts as {pads})", partial(_padded_by, flat))


def _same_padding(
    sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """Return the edges of padding by SAME, from the last axis to the first as F.pad takes them."""
    edges: list[int] = []
    for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
        total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
        edges = [total // 2, total - total // 2, *edges]
    return edges


def _padded_by(pads: Sequence[int], bound: Kwargs) -> Kwargs:
    return {"input": F.pad(bound["input"], list(pads)), "padding": 0}


def _transposed(bound: Kwargs) -> Iterator[Variation]:
    """Pad as Flax's transposed convolution, which pads the dilated input: by k - 1 - p for torch's p."""
    space = bound["weight"].shape[2:]
    right = _per_axis(bound.get("padding", 0), len(space))[0]
    for p in range(max(space)):
        if p != right:
            yield calling(f"padding for torch's {right} (it acts as {p})", padding=p)
    for p in (0, 1):
        yield calling(f"output_padding={bound.get('output_padding', 0)} (it acts as {p})", output_padding=p)
    settings = [
        _per_axis(bound.get(name, default), len(space))
        for name, default in {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1}.items()
    ]
    dimensions = [*zip(space, *settings, strict=True)]
    full = [d * (k - 1) for k, _, _, _, d in dimensions]
    exact = [(n - p, n - p + o) for n, (_, _, p, o, _) in zip(full, dimensions, strict=True)]
    others = {
        "'SAME'": [_same(n + 1, s) for n, (_, s, *_) in zip(full, dimensions, strict=True)],
        "'VALID'": [(n, n + max(s - 1 - n, 0)) for n, (_, s, *_) in zip(full, dimensions, strict=True)],
        "torch's own number": [(p, p) for _, _, p, _, _ in dimensions],
        "output_padding at the beginning": [(b, a) for a, b in exact],
    }
    for convention, pads in others.items():
        if pads != exact:
            moved = [(a - n, b - n) for n, (a, b) in zip(full, pads, strict=True)]
            yield recalling_then(
                f"padding={exact} for torch's padding and output_padding (it acts as {convention}, {pads})",
                {"padding": 0, "output_padding": 0, "bias": None},
                partial(_cut_or_filled, moved, bound.get("bias")),
            )


def _same(length: int, stride: int) -> tuple[int, int]:
    """Return the padding of jax.lax.conv_transpose's 'SAME', which makes the output stride times as long."""
    both = length + stride - 2
    first = length - 1 if stride > length - 1 else -(-both // 2)
    return first, both - first


def _cut_or_filled(moved: list[tuple[int, int]], bias: torch.Tensor | None, y: torch.Tensor) -> torch.Tensor:
    y = F.pad(y, [n for pads in reversed(moved) for n in pads])
    return y if bias is None else y + bias.view(-1, *[1] * len(moved))


def _per_axis(value: int | str | Sequence[int], n: int) -> tuple:
    return (value,) * n if isinstance(value, int | str) else tuple(value) * (n // len(value))


def average_pool(op: Op) -> Iterator[Variation]:
    # nnx.avg_pool counts padding as torch does; other libraries do not.
    right = arguments_of(op).get("count_include_pad", True)
    yield from acting_as("count_include_pad", right, [not right])
    yield from max_pool(op)


def max_pool(op: Op) -> Iterator[Variation]:
    bound = arguments_of(op)
    kernel, ceil = bound["kernel_size"], bound.get("ceil_mode", False)
    stride = bound.get("stride") or kernel
    yield calling(f"strides={stride} (it acts as 1)", stride=1)
    yield calling(f"ceil_mode={ceil}", ceil_mode=not ceil)
    name = op.name.replace("max", "avg") if "max" in op.name else op.name.replace("avg", "max")
    other, padding = getattr(F, name), bound.get("padding", 0)
    text = f"{op.name} (it acts as {name})"
    yield applying(text, lambda x, *args, **kwargs: other(x, kernel, stride, padding))
    x = bound["input"]
    n = int(op.name[-2])
    axes = [_per_axis(value, n) for value in (kernel, stride, 1)]
    edges = _same_padding(x.shape[-n:], *axes)
    filled = 0.0 if "avg" in op.name else -math.inf
    yield recalling(
        f"padding={padding} (it acts as 'SAME')",
        lambda bound: {"input": F.pad(bound["input"], edges, value=filled), "padding": 0},
    )


def pixel_shuffle(op: Op) -> Iterator[Variation]:
    """pixel_shuffle: torch reads the channels as (C, rows, columns)."""
    r = arguments_of(op)["upscale_factor"]
    # The positions of C, rows and columns in each order.
    axes = {"(C, columns, rows)": (0, 2, 1), "(rows, columns, C)": (2, 0, 1), "(columns, rows, C)": (2, 1, 0)}

    def read(layout: str, function: Function, args: tuple, kwargs: Kwargs) -> PyTree:
        bound = arguments(function, args, kwargs)
        x, order = bound["input"], axes[layout]
        sizes = [r, r, r]
        sizes[order[0]] = x.shape[-3] // r**2
        blocks = x.unflatten(-3, sizes).movedim([-5 + offset for offset in order], [-5, -4, -3])
        return function(blocks.flatten(-5, -3), r)

    for layout in axes:
        text = f"channels are read as (C, rows, columns) (they are read as {layout})"
        yield Variation(text, partial(read, layout))


def roll(op: Op) -> Iterator[Variation]:
    bound = arguments_of(op)
    shifts = bound["shifts"]
    several = shifts if isinstance(shifts, (tuple, list)) else (shifts,)
    back = tuple(-n for n in several)
    yield calling(f"shifts={shifts} (it acts as {back})", shifts=back)
    yield applying(f"shifts={shifts} (nothing is rolled)", lambda x, *args, **kwargs: x)


def interpolate(op: Op) -> Iterator[Variation]:
    bound = arguments_of(op)
    mode, corners, antialias = bound["mode"], bool(bound["align_corners"]), bound["antialias"]
    if mode in ("linear", "bilinear", "bicubic", "trilinear"):
        yield from acting_as("align_corners", corners, [not corners])
    # jax.image.resize antialiases when it shrinks, and its cubic kernel has a=-0.5 where torch has -0.75.
    if mode in ("bilinear", "bicubic"):
        text = f"antialias={antialias} (it acts as {not antialias}, or as a=-0.5)"
        yield calling(text, antialias=not antialias)
    modes = ("nearest", "nearest-exact", "bilinear", "bicubic")
    yield from acting_as("mode", mode, modes, repr, align_corners=None)


def flatten(op: Op) -> Iterator[Variation]:
    """flatten: channels come first in torch and last in Flax, which changes the order of features."""
    x = op.args[0]
    if isinstance(x, torch.Tensor) and x.ndim > 2:
        yield replacing(
            "features are flattened as (C, *S): x.transpose(0, 3, 1, 2) first "
            "(they are flattened as (*S, C))",
            0,
            lambda x: x.movedim(1, -1),
        )


def reshape(op: Op) -> Iterator[Variation]:
    """reshape: one axis split into heads and their size in the wrong order."""
    yield from flatten(op)
    shape = op.args[1:]
    shape = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else tuple(shape)
    if len(shape) > 3 and all(isinstance(n, int) for n in shape):
        # A wrong split has as many elements as the right one, so nothing raises.
        crosswise = (*shape[:-2], shape[-1], shape[-2])
        yield Variation(
            "the last axis is split into (heads, size) (it is split into (size, heads))",
            lambda function, args, kwargs: args[0].reshape(crosswise).transpose(-1, -2),
        )


def pieces(op: Op) -> Iterator[Variation]:
    """chunk, split, unbind: query, key and value, or gates, in a different order."""
    parts = op.function(*op.args, **op.kwargs)
    if not isinstance(parts, tuple | list) or len(parts) > 4 or len({x.shape for x in parts}) != 1:
        return
    for order in orders(len(parts)):
        text = f"the pieces of {op.name} are in torch's order (they are in order {order})"
        yield afterwards(text, lambda parts, order=order: tuple(parts[i] for i in order))


def concatenation(op: Op) -> Iterator[Variation]:
    count = len(op.args[0])
    backwards = tuple(reversed(range(count)))
    for order in dict.fromkeys([backwards, *(orders(count) if count < 4 else ())]):
        shown = "reversed" if order == backwards else f"in order {order}"
        text = f"the parts of {op.name} are in torch's order (they are {shown})"
        yield replacing(text, 0, lambda parts, order=order: [parts[i] for i in order])


VERBS = {"add": "added", "mul": "multiplied", "sub": "subtracted", "div": "divided", "truediv": "divided"}
OPERATIONS = {"added": torch.add, "multiplied": torch.mul, "subtracted": torch.sub, "divided": torch.div}


def binary(op: Op) -> Iterator[Variation]:
    """add, mul, ...: an operand that is left out, or joined by a different operation."""
    verb = VERBS[op.name.strip("_").removeprefix("r").removeprefix("i")]
    if len(op.args) > 1:
        shape = op.function(*op.args, **op.kwargs).shape
        for i, operand in enumerate(op.args[:2]):
            if isinstance(operand, torch.Tensor) and operand.shape == shape:
                text = f"the other operand is {verb} (it is left out)"
                yield applying(text, lambda *args, i=i, **kwargs: args[i])
            elif verb == "multiplied" and isinstance(operand, torch.Tensor) and operand.is_floating_point():
                # As a norm's weight that is kept around 0, which some models have.
                text = "the weight multiplies as it is (1 is added to it first)"
                yield replacing(text, i, partial(operator.add, 1))
        for other, operation in OPERATIONS.items():
            if other != verb:
                yield applying(f"the operands are {verb} (they are {other})", operation)


def reduction(op: Op) -> Iterator[Variation]:
    """mean, sum, amax, amin over the same axes as a different one of them."""
    for other in ("sum", "mean", "amax", "amin"):
        if other != op.name:
            yield applying(f"{op.name} (it acts as {other.removeprefix('a')})", getattr(torch, other))


def product(op: Op) -> Iterator[Variation]:
    b = op.args[1]
    if isinstance(b, torch.Tensor) and b.ndim > 1 and b.shape[-1] == b.shape[-2]:
        text = "the second factor of the product is not transposed (it is)"
        yield replacing(text, 1, lambda factor: factor.transpose(-1, -2))
