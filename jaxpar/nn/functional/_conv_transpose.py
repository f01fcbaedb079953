"""conv_transpose: the transpose of conv, with torch's groups, output_padding and output_size."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ..._typing import Shape
from ._conv import as_rows, dimensions, window_of
from ._window import Ints, per_axis


def conv_transpose(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> jax.Array:
    """What a convolution with these options does to its gradient.

    Args:
      x: [N, *S, I], or one row [*S, I].
      kernel: [*k, O / groups, I], which is the kernel of the convolution from O to I channels.
      bias: [O], or None.
      stride: the distance between the input's elements in the output; one number for all spatial
        axes, or one for each, as are the following.
      padding: elements cut off at both ends of the output.
      output_padding: elements more at its end.
      groups: of channels; each sees the input channels of its own group.
      dilation: the distance between the kernel's elements.

    Returns:
      [N, *T, O], T = (S - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1.

    Raises:
      ValueError, RuntimeError: what torch refuses, with torch's reason: options that do not fit
        together, another number of axes or channels, no output left.

    torch counterpart: `torch.nn.functional.conv_transpose1d/2d/3d`, whose weight is
    (I, O / groups, *k). Source: ATen/native/Convolution.cpp.
    """
    n = kernel.ndim - 2
    k, I, O = kernel.shape[:n], kernel.shape[-1], kernel.shape[-2] * groups
    strides, pads, dilations, more = transposed_window(
        k, I, O, stride, padding, output_padding, groups, dilation
    )
    rows = as_rows(f"conv_transpose{n}d", x, n, I, groups, kernel)
    reach = [d * (size - 1) for d, size in zip(dilations, k, strict=True)]
    each = zip(rows.shape[1:-1], strides, pads, reach, more, strict=True)
    space = [(s - 1) * step - 2 * p + r + extra + 1 for s, step, p, r, extra in each]
    if min(space) <= 0:
        raise RuntimeError(
            f"Given input size per channel: {list(rows.shape[1:-1])}. Calculated output size per channel: "
            f"{space}. Output size is too small"
        )
    y = jax.lax.conv_general_dilated(
        rows,
        _turned(kernel, n, groups),
        (1,) * n,
        [(r - p, r - p + extra) for r, p, extra in zip(reach, pads, more, strict=True)],
        lhs_dilation=strides,
        rhs_dilation=dilations,
        dimension_numbers=dimensions(n),
        feature_group_count=groups,
    )
    y = y if bias is None else y + bias
    return y if rows.ndim == x.ndim else y[0]


def _turned(kernel: jax.Array, n: int, groups: int) -> jax.Array:
    """[*k, O / groups, I] as the kernel [*k, I / groups, O] of the convolution that does it."""
    *k, each, I = kernel.shape
    kernel = jnp.flip(kernel, tuple(range(n))).reshape(*k, each, groups, I // groups)
    return jnp.moveaxis(kernel, n, n + 2).swapaxes(n, n + 1).reshape(*k, I // groups, groups * each)


def transposed_window(
    kernel_size: Sequence[int],
    I: int,
    O: int,
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    groups: int,
    dilation: Ints,
) -> tuple[Shape, Shape, Shape, Shape]:
    """stride, padding, dilation and output_padding for each axis; what torch refuses raises."""
    if isinstance(padding, str):
        raise TypeError(f"conv_transpose: padding must be one or more ints, but got {padding!r}")
    strides, pairs, dilations = window_of(kernel_size, I, O, stride, padding, dilation, groups, "zeros")
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
    output_size: Sequence[int], x: jax.Array, kernel_size: Shape, stride: Ints, padding: Ints, dilation: Ints
) -> Shape:
    """The output_padding that gives an output of this size: [*T], or as many numbers as x has axes."""
    n = len(kernel_size)
    if len(output_size) == x.ndim:
        output_size = output_size[-n - 1 : -1]
    if len(output_size) != n:
        raise ValueError(
            f"ConvTranspose{n}D: for {x.ndim}D input, output_size must have {n} or {x.ndim} elements (got "
            f"{len(output_size)})"
        )
    options = zip(*(per_axis("conv_transpose", "", o, n) for o in (stride, padding, dilation)), strict=True)
    space = x.shape[-n - 1 : -1]
    least = [
        (s - 1) * step - 2 * p + d * (k - 1) + 1
        for s, k, (step, p, d) in zip(space, kernel_size, options, strict=True)
    ]
    most = [m + step - 1 for m, step in zip(least, per_axis("conv_transpose", "", stride, n), strict=True)]
    if not all(a <= size <= b for a, size, b in zip(least, output_size, most, strict=True)):
        raise ValueError(
            f"requested an output size of {tuple(output_size)}, but valid sizes range from {least} to {most} "
            f"(for an input of {list(space)})"
        )
    return tuple(size - m for size, m in zip(output_size, least, strict=True))
