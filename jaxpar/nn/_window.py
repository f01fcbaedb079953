"""Sliding windows along an axis: their number, and the geometries that torch refuses.

One number applies to all spatial axes. The first option that is a tuple determines the number of spatial
axes; if all are ints, all axes between the first and the last are spatial, as in [N, *S, C].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from .._arguments import Least

Ints: TypeAlias = int | Sequence[int]
Sizes: TypeAlias = int | Sequence[int | None] | None
Scale: TypeAlias = Annotated[float, Least(0, RuntimeError)]  # torch's class
T = TypeVar("T")


def sizes(kernel_size: Ints, axes: int) -> tuple[int, ...]:
    return tuple(kernel_size) if isinstance(kernel_size, Sequence) else (kernel_size,) * axes


@dataclasses.dataclass(frozen=True)
class Window:
    """`size` elements, `dilation` apart; each window starts `stride` after the one before.

    With `ceil_mode` a last window may reach beyond the padding if it starts before the padding at the end.
    """

    size: int
    stride: int
    padding: int = 0
    dilation: int = 1
    ceil_mode: bool = False

    @property
    def extent(self) -> int:
        return self.dilation * (self.size - 1) + 1

    def count(self, n: int) -> int:
        """The number of windows over n elements. Source: ATen/native/Pool.h, pooling_output_shape."""
        free = n + 2 * self.padding - self.extent
        count = (-(-free // self.stride) if self.ceil_mode else free // self.stride) + 1
        # torch drops a last window that would start in the padding at the end, where it has no element of x.
        if self.ceil_mode and (count - 1) * self.stride >= n + self.padding:
            count -= 1
        return count

    def end(self, n: int) -> int:
        """Elements by which the last window exceeds the axis; negative if the axis has unused elements."""
        return (self.count(n) - 1) * self.stride + self.extent - self.padding - n

    def edges(self, x: jax.Array, axis: int) -> list[tuple[int, int, int]]:
        """The padding of `jax.lax.pad` that makes room for all windows along one axis."""
        edges = [(0, 0, 0)] * x.ndim
        edges[axis] = (self.padding, self.end(x.shape[axis]), 0)
        return edges


def window_elements(x: jax.Array, axis: int, window: Window, fill: float) -> list[jax.Array]:
    """The first elements of all windows along an axis, then the second ones, ...; `fill` beyond the ends."""
    last = (window.count(x.shape[axis]) - 1) * window.stride
    x = jax.lax.pad(x, jnp.asarray(fill, x.dtype), window.edges(x, axis))
    starts = (j * window.dilation for j in range(window.size))
    return [jax.lax.slice_in_dim(x, i, i + last + 1, window.stride, axis) for i in starts]


def spatial_rank(function: str, x: jax.Array | None, *options: object) -> int:
    """Return the number of spatial axes of x, or of a layer's options (x is None; 1 if all are ints)."""
    lengths = [len(o) for o in options if isinstance(o, Sequence)]
    if 0 in lengths:
        raise ValueError(
            f"{function}: kernel_size, stride, padding, dilation and output_size are numbers, or tuples "
            "with one for each spatial axis; one of them is empty."
        )
    if x is None:
        return lengths[0] if lengths else 1
    rank = lengths[0] if lengths else x.ndim - 2
    if rank < 1 or x.ndim < rank + 1:
        raise ValueError(
            f"{function}: x has shape {tuple(x.shape)}, which is not [..., *S, C] with "
            f"{rank if lengths else 'one or more'} spatial axes. With plain numbers as options the first "
            "axis is the batch; give a tuple with a number for each spatial axis if there is no batch."
        )
    return rank


def per_axis(function: str, name: str, value: T | Sequence[T], rank: int) -> tuple[T, ...]:
    numbers = tuple(value) if isinstance(value, Sequence) else (value,) * rank
    if len(numbers) == 1:
        numbers *= rank
    if len(numbers) != rank:
        raise ValueError(f"{function}: {name}={value} has {len(numbers)} numbers for {rank} spatial axes.")
    return numbers


def windows(
    function: str,
    rank: int,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool = False,
) -> tuple[Window, ...]:
    """Return the windows, one for each spatial axis; raise where torch does, with its message."""
    sizes = per_axis(function, "kernel_size", kernel_size, rank)
    strides = per_axis(function, "stride", stride, rank)
    paddings = per_axis(function, "padding", padding, rank)
    dilations = per_axis(function, "dilation", dilation, rank)
    for name, values in {"kernel_size": sizes, "stride": strides, "dilation": dilations}.items():
        if min(values) <= 0:
            raise ValueError(f"{function}: {name} must be greater than zero, but got {min(values)}.")
    if min(paddings) < 0:
        raise ValueError(f"{function}: padding must be non-negative, but got {min(paddings)}.")
    axes = zip(sizes, strides, paddings, dilations, strict=True)
    return tuple(Window(k, s, p, d, ceil_mode) for k, s, p, d in axes)


def pool_windows(
    function: str,
    x: jax.Array | None,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    output_size: Sequence[int] | None = None,
) -> tuple[Window, ...]:
    """Return `windows` with a pool's defaults, and refuse windows of padding only; x as in `spatial_rank`."""
    rank = spatial_rank(function, x, kernel_size, stride, padding, dilation, output_size)
    over = windows(
        function, rank, kernel_size, kernel_size if stride is None else stride, padding, dilation, ceil_mode
    )
    for window in over:
        if window.padding > window.size // 2:
            raise ValueError(
                f"{function}: padding should be at most half of kernel size, but got "
                f"padding={window.padding} and kernel_size={window.size}."
            )
    return over


def check_counts(function: str, x: jax.Array, over: Sequence[Window]) -> None:
    """Raise if an axis of x is shorter than its window."""
    rank = len(over)
    sizes = x.shape[-1 - rank : -1]
    counts = tuple(w.count(n) for w, n in zip(over, sizes, strict=True))
    if min(counts) < 1:
        raise ValueError(
            f"{function}: Given input size {tuple(sizes)}. Calculated output size {counts}. "
            "Output size is too small."
        )
