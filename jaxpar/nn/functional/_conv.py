"""conv: convolution with torch's paddings, channels last, kernels in Flax's layout."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from ..._typing import Shape
from ._pad import pad
from ._window import Ints, per_axis

MODES = ("zeros", "reflect", "replicate", "circular")


def conv(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    stride: Ints = 1,
    padding: str | Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> jax.Array:
    """Convolution over as many axes as the kernel has.

    Args:
      x: [N, *S, I], or one row [*S, I]. I: channels in.
      kernel: [*k, I / groups, O]. O: channels out.
      bias: [O], or None.
      stride: one number for all spatial axes, or one for each; so are `padding` and `dilation`.
      padding: elements before and after each axis; "valid" for none; "same" for an output as long as
        the input, where the end gets the odd one.
      dilation: the distance between the kernel's elements.
      groups: of channels; each sees the input channels of its own group.
      padding_mode: what the padding is: "zeros", "reflect" (without the border), "replicate" (the
        border), "circular" (from the other end).

    Returns:
      [N, *T, O], T = (S + 2 padding - dilation (k - 1) - 1) // stride + 1.

    Raises:
      ValueError, RuntimeError: what torch refuses, with torch's reason: options that do not fit
        together, another number of axes or channels, a kernel longer than the padded input.

    torch counterpart: `torch.nn.functional.conv1d/2d/3d`, whose weight is (O, I / groups, *k), and the
    padding modes of `torch.nn.Conv1d/2d/3d`. Source: torch/nn/modules/conv.py,
    ATen/native/Convolution.cpp.
    """
    n = kernel.ndim - 2
    k, I, O = kernel.shape[:n], kernel.shape[-2] * groups, kernel.shape[-1]
    window = window_of(k, I, O, stride, padding, dilation, groups, padding_mode)
    rows = as_rows(f"conv{n}d", x, n, I, groups, kernel)
    pads = window.padding
    if padding_mode != "zeros":
        rows = pad(rows, [p for pair in reversed(pads) for p in pair], padding_mode)
        pads = ((0, 0),) * n
    _check_reach(rows.shape[1:-1], k, pads, window.dilation)
    y = jax.lax.conv_general_dilated(
        rows,
        kernel,
        window.stride,
        pads,
        rhs_dilation=window.dilation,
        dimension_numbers=dimensions(n),
        feature_group_count=groups,
    )
    y = y if bias is None else y + bias
    return y if rows.ndim == x.ndim else y[0]


class Window(NamedTuple):
    """Options with one entry for each spatial axis."""

    stride: Shape
    padding: tuple[tuple[int, int], ...]
    dilation: Shape


def window_of(
    kernel_size: Sequence[int],
    I: int,
    O: int,
    stride: Ints,
    padding: str | Ints,
    dilation: Ints,
    groups: int,
    padding_mode: str,
) -> Window:
    """The options of one call; what torch refuses raises with torch's reason."""
    n = len(kernel_size)
    if groups <= 0:
        raise ValueError("groups must be a positive integer")
    if I % groups:
        raise ValueError("in_channels must be divisible by groups")
    if O % groups:
        raise ValueError("out_channels must be divisible by groups")
    if padding_mode not in MODES:
        raise ValueError(f"padding_mode must be one of {set(MODES)}, but got padding_mode='{padding_mode}'")
    strides, dilations = _positive("stride", stride, n), _positive("dilation", dilation, n)
    _positive("kernel_size", kernel_size, n)
    if not isinstance(padding, str):
        ends = tuple(map(operator.index, per_axis("conv", "padding", padding, n)))
        if padding_mode == "zeros" and min(ends) < 0:
            raise RuntimeError("negative padding is not supported")
        return Window(strides, tuple((p, p) for p in ends), dilations)
    if padding not in ("same", "valid"):
        raise ValueError(f"Invalid padding string {padding!r}, should be one of {'same', 'valid'}")
    if padding == "valid":
        return Window(strides, ((0, 0),) * n, dilations)
    if any(s != 1 for s in strides):
        raise ValueError("padding='same' is not supported for strided convolutions")
    more = [d * (k - 1) for d, k in zip(dilations, kernel_size, strict=True)]
    return Window(strides, tuple((m // 2, m - m // 2) for m in more), dilations)


def _positive(name: str, value: Any, n: int) -> Shape:
    numbers = tuple(map(operator.index, per_axis("conv", name, value, n)))
    if min(numbers) <= 0:
        raise RuntimeError(f"non-positive {name} is not supported")
    return numbers


def dimensions(n: int) -> jax.lax.ConvDimensionNumbers:
    """Rows first, channels last; kernels [*k, in, out]."""
    space = tuple(range(1, n + 1))
    return jax.lax.ConvDimensionNumbers((0, n + 1, *space), (n + 1, n, *range(n)), (0, n + 1, *space))


def as_rows(function: str, x: jax.Array, n: int, I: int, groups: int, kernel: jax.Array) -> jax.Array:
    """[N, *S, I], of one row or of many."""
    if x.ndim not in (n + 1, n + 2):
        raise RuntimeError(
            f"Expected {n + 1}D (unbatched) or {n + 2}D (batched) input to {function}, but got input of "
            f"size: {list(x.shape)}"
        )
    if x.shape[-1] != I:
        raise RuntimeError(
            f"Given groups={groups}, kernel of shape {list(kernel.shape)}, expected input{list(x.shape)} to "
            f"have {I} channels, but got {x.shape[-1]} channels instead"
        )
    if 0 in x.shape[-n - 1 : -1]:
        raise RuntimeError(
            f"Only zero batch or zero channel inputs are supported, but got input shape: {list(x.shape)}"
        )
    return x if x.ndim == n + 2 else x[None]


def _check_reach(space: Shape, k: Shape, pads: Sequence[tuple[int, int]], dilation: Shape) -> None:
    padded = [s + sum(p) for s, p in zip(space, pads, strict=True)]
    reach = [d * (size - 1) + 1 for d, size in zip(dilation, k, strict=True)]
    if any(r > s for r, s in zip(reach, padded, strict=True)):
        raise RuntimeError(
            f"Calculated padded input size per channel: ({' x '.join(map(str, padded))}). Kernel size: "
            f"({' x '.join(map(str, reach))}). Kernel size can't be greater than actual input size"
        )
