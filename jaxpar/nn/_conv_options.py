"""Options of a convolution, one entry for each spatial axis, and the checks that torch makes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

from .._typing import Shape
from ._window import Ints, per_axis

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class ConvOptions(NamedTuple):
    """`padding`: elements before and after each axis."""

    stride: Shape
    padding: tuple[tuple[int, int], ...]
    dilation: Shape


def conv_options(
    kernel_size: Sequence[int],
    I: int,
    O: int,
    stride: Ints,
    padding: str | Ints,
    dilation: Ints,
    groups: int,
    padding_mode: str,
) -> ConvOptions:
    n = len(kernel_size)
    if groups <= 0:
        raise ValueError("groups must be a positive integer")
    if I % groups:
        raise ValueError("in_channels must be divisible by groups")
    if O % groups:
        raise ValueError("out_channels must be divisible by groups")
    if padding_mode not in PADDING_MODES:
        raise ValueError(
            f"padding_mode must be one of {set(PADDING_MODES)}, but got padding_mode='{padding_mode}'"
        )
    strides, dilations = _positive("stride", stride, n), _positive("dilation", dilation, n)
    _positive("kernel_size", kernel_size, n)
    if not isinstance(padding, str):
        ends = tuple(map(operator.index, per_axis("conv", "padding", padding, n)))
        if padding_mode == "zeros" and min(ends) < 0:
            raise RuntimeError("negative padding is not supported")
        return ConvOptions(strides, tuple((p, p) for p in ends), dilations)
    if padding not in ("same", "valid"):
        raise ValueError(f"Invalid padding string {padding!r}, should be one of {'same', 'valid'}")
    if padding == "valid":
        return ConvOptions(strides, ((0, 0),) * n, dilations)
    if any(s != 1 for s in strides):
        raise ValueError("padding='same' is not supported for strided convolutions")
    more = [d * (k - 1) for d, k in zip(dilations, kernel_size, strict=True)]
    # An odd element of padding goes to the end, as in torch.
    return ConvOptions(strides, tuple((m // 2, m - m // 2) for m in more), dilations)


def _positive(name: str, value: Ints, n: int) -> Shape:
    numbers = tuple(map(operator.index, per_axis("conv", name, value, n)))
    if min(numbers) <= 0:
        raise RuntimeError(f"non-positive {name} is not supported")
    return numbers


def transposed_options(
    kernel_size: Sequence[int],
    I: int,
    O: int,
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    groups: int,
    dilation: Ints,
) -> tuple[Shape, Shape, Shape, Shape]:
    """Return stride, padding, dilation and output_padding for each axis; raise where torch does."""
    if isinstance(padding, str):
        raise TypeError(f"conv_transpose: padding must be one or more ints, but got {padding!r}")
    strides, pairs, dilations = conv_options(kernel_size, I, O, stride, padding, dilation, groups, "zeros")
    more = per_axis("conv_transpose", "output_padding", output_padding, len(kernel_size))
    if min(more) < 0:
        raise RuntimeError("negative output_padding is not supported")
    if any(m >= max(s, d) for m, s, d in zip(more, strides, dilations, strict=True)):
        raise RuntimeError(
            "output padding must be smaller than either stride or dilation, but got output_padding: "
            f"{list(more)} stride: {list(strides)} dilation: {list(dilations)}"
        )
    return strides, tuple(p for p, _ in pairs), dilations, more


def output_padding_for(
    output_size: Sequence[int],
    x_shape: Shape,
    kernel_size: Shape,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
) -> Shape:
    """Return the output_padding for an output of this size: [*T], or one number for each axis of x."""
    n = len(kernel_size)
    if len(output_size) == len(x_shape):
        # A complete shape has its channels last, as x has.
        output_size = output_size[-n - 1 : -1]
    if len(output_size) != n:
        raise ValueError(
            f"ConvTranspose{n}D: for {len(x_shape)}D input, output_size must have {n} or {len(x_shape)} "
            f"elements (got {len(output_size)})"
        )
    strides, paddings, dilations = (per_axis("conv_transpose", "", o, n) for o in (stride, padding, dilation))
    space = x_shape[-n - 1 : -1]
    least = [
        (s - 1) * step - 2 * p + d * (k - 1) + 1
        for s, k, step, p, d in zip(space, kernel_size, strides, paddings, dilations, strict=True)
    ]
    most = [m + step - 1 for m, step in zip(least, strides, strict=True)]
    if not all(a <= size <= b for a, size, b in zip(least, output_size, most, strict=True)):
        raise ValueError(
            f"requested an output size of {tuple(output_size)}, but valid sizes range from {least} to {most} "
            f"(for an input of {list(space)})"
        )
    return tuple(size - m for size, m in zip(output_size, least, strict=True))
