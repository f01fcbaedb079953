"""Checks of options, with torch's error messages, for layers at construction and for functions."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

from .._typing import Shape
from ._window import Ints, Scale, Sizes, per_axis


def check_groups(num_groups: int, C: int) -> None:
    if num_groups < 1 or C % num_groups:
        raise ValueError(f"num_channels ({C}) must be divisible by num_groups ({num_groups})")


def checked_shape(normalized_shape: int | Sequence[int]) -> Shape:
    lengths = normalized_shape if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    shape = tuple(map(operator.index, lengths))
    if not shape:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, "
            "but got normalized_shape = []"
        )
    return shape


def check_size(size: int) -> None:
    if size < 1:
        raise RuntimeError(f"local_response_norm: size should be greater than zero, but got {size}")


def check_probability(p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def check_bounds(lower: float, upper: float) -> None:
    if lower > upper:
        raise ValueError(
            f"Lower bound should be less than or equal to the upper bound, but got {lower} and {upper}"
        )


def check_embedding(function: str, table: Sequence[int], padding_idx: int | None, sparse: bool) -> None:
    num_embeddings = table[0]
    if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
        raise ValueError(
            f"{function}: padding_idx must be within num_embeddings, but is {padding_idx} for "
            f"{num_embeddings} rows."
        )
    if sparse:
        raise ValueError(f"{function}: JAX has no sparse gradients; leave sparse=True out.")


def check_embedding_bag(
    table: Sequence[int], mode: str, scale_grad_by_freq: bool, sparse: bool, padding_idx: int | None
) -> None:
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"mode has to be one of sum, mean or max, but is {mode!r}")
    if mode == "max" and scale_grad_by_freq:
        raise ValueError("max mode does not support scaling the gradient by the frequency")
    if mode == "max" and sparse:
        raise ValueError("max mode does not support sparse weights")
    check_embedding("embedding_bag", table, padding_idx, sparse)


def check_divisor(function: str, divisor_override: int | None) -> None:
    if divisor_override == 0:
        raise ValueError(f"{function}: divisor must be not zero.")


def check_norm_type(function: str, norm_type: float) -> None:
    if norm_type == 0:
        raise ValueError(f"{function}: norm_type is 0, and 1 / norm_type a division by zero.")


def check_output_size(function: str, output_size: Sizes) -> None:
    sizes = output_size if isinstance(output_size, Sequence) else [output_size]
    if any(o is not None and o < 0 for o in sizes):
        raise ValueError(
            f"{function}: elements of output_size must be greater than or equal to 0 but received "
            f"{output_size}."
        )


def check_factor(function: str, name: str, factor: int) -> None:
    if factor <= 0:
        raise ValueError(f"{function} expects a positive {name}, but got {factor}")


def check_shuffle_groups(groups: int) -> None:
    if groups <= 0:
        raise ValueError(f"Number of groups to divide channels in must be positive. Value of groups:{groups}")


INTERPOLATING = ("linear", "bilinear", "trilinear", "bicubic", "lanczos")
COPYING = ("nearest", "nearest-exact", "area")


def check_interpolation(
    size: int | Sequence[int] | None,
    scale_factor: Scale | Sequence[Scale] | None,
    mode: str,
    align_corners: bool | None,
    recompute_scale_factor: bool | None,
    antialias: bool = False,
) -> None:
    if mode not in INTERPOLATING and mode not in COPYING:
        modes = ", ".join(COPYING + INTERPOLATING)
        raise NotImplementedError(f"interpolate: mode={mode!r} is none of {modes}.")
    if mode in COPYING and align_corners is not None:
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: "
            "linear | bilinear | bicubic | trilinear"
        )
    if (size is None) == (scale_factor is None):
        problem = "either" if size is None else "only one of"
        raise ValueError(f"{problem} size or scale_factor should be defined")
    if size is not None and min(size if isinstance(size, Sequence) else (size,)) <= 0:
        raise ValueError(f"Input and output sizes should be greater than 0, but got output {size}")
    if recompute_scale_factor and size is not None:
        raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
    if antialias and mode not in ("bilinear", "bicubic", "lanczos"):
        raise ValueError("Anti-alias option is restricted to bilinear, bicubic, and lanczos modes")
    if mode == "lanczos" and align_corners:
        raise ValueError("Lanczos mode does not support align_corners=True")
    if mode == "lanczos" and not antialias:
        raise ValueError("Lanczos mode requires antialias=True")


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
