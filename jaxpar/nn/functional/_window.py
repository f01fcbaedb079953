"""Windows that slide over an axis: their number, and what torch refuses.

Pools, fold and unfold count their windows here. Lists of numbers follow torch: one number stands
for all spatial axes. How many spatial axes there are is the length of the first tuple; with plain
numbers all axes between the first and the last are spatial, as in [N, *S, C].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

Ints = int | Sequence[int]


@dataclasses.dataclass(frozen=True)
class Window:
    """`size` elements `dilation` apart, the first of them `stride` further with each window.

    The axis is lengthened by `padding` at both ends. With `ceil_mode` a last window may reach
    beyond that, if it begins before the padding at the end.
    """

    size: int
    stride: int
    padding: int = 0
    dilation: int = 1
    ceil_mode: bool = False

    @property
    def reach(self) -> int:
        """From a window's first element to its last, both counted."""
        return self.dilation * (self.size - 1) + 1

    def count(self, n: int) -> int:
        """The number of windows over n elements. Source: ATen/native/Pool.h, pooling_output_shape."""
        free = n + 2 * self.padding - self.reach
        count = (-(-free // self.stride) if self.ceil_mode else free // self.stride) + 1
        if self.ceil_mode and (count - 1) * self.stride >= n + self.padding:
            count -= 1
        return count

    def end(self, n: int) -> int:
        """How far the last window reaches beyond the axis; negative for elements that none reads."""
        return (self.count(n) - 1) * self.stride + self.reach - self.padding - n


def elements(x: jax.Array, axis: int, window: Window, fill: Any) -> list[jax.Array]:
    """The first elements of all windows along an axis, the second ones, and so on; `fill` beyond the ends."""
    n = x.shape[axis]
    count = window.count(n)
    edges = [(0, 0, 0)] * x.ndim
    edges[axis] = (window.padding, window.end(n), 0)
    x = jax.lax.pad(x, jnp.asarray(fill, x.dtype), edges)
    starts = (j * window.dilation for j in range(window.size))
    last = (count - 1) * window.stride
    return [jax.lax.slice_in_dim(x, i, i + last + 1, window.stride, axis) for i in starts]


def spatial(function: str, x: Any, *options: Any) -> int:
    """The number of spatial axes of x [..., *S, C]."""
    lengths = [len(o) for o in options if isinstance(o, Sequence)]
    rank = lengths[0] if lengths else x.ndim - 2
    if rank < 1 or x.ndim < rank + 1:
        raise ValueError(
            f"{function}: x has shape {tuple(x.shape)}, which is not [..., *S, C] with "
            f"{rank if lengths else 'one or more'} spatial axes. With plain numbers as options the first "
            "axis is the batch; give a tuple with a number for each spatial axis if there is no batch."
        )
    return rank


def per_axis(function: str, name: str, value: Any, rank: int) -> tuple[Any, ...]:
    """One number, or one for each spatial axis, as a tuple."""
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
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
) -> tuple[Window, ...]:
    """The windows, one for each spatial axis; what torch refuses raises with torch's reason."""
    sizes = per_axis(function, "kernel_size", kernel_size, rank)
    strides = per_axis(function, "stride", kernel_size if stride is None else stride, rank)
    paddings = per_axis(function, "padding", padding, rank)
    dilations = per_axis(function, "dilation", dilation, rank)
    for name, values in {"kernel_size": sizes, "stride": strides, "dilation": dilations}.items():
        if min(values) <= 0:
            raise ValueError(f"{function}: {name} must be greater than zero, but got {min(values)}.")
    if min(paddings) < 0:
        raise ValueError(f"{function}: padding must be non-negative, but got {min(paddings)}.")
    each = zip(sizes, strides, paddings, dilations, strict=True)
    return tuple(Window(k, s, p, d, ceil_mode) for k, s, p, d in each)


def pool_windows(
    function: str,
    rank: int,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
) -> tuple[Window, ...]:
    """`windows` in which every one holds an element, as pools need it."""
    over = windows(function, rank, kernel_size, stride, padding, dilation, ceil_mode)
    for window in over:
        if window.padding > window.size // 2:
            raise ValueError(
                f"{function}: padding should be at most half of kernel size, but got "
                f"padding={window.padding} and kernel_size={window.size}."
            )
    return over


def rank_of(*options: Any) -> int:
    """The number of spatial axes that options speak of, 1 if they are all plain numbers."""
    return next((len(o) for o in options if isinstance(o, Sequence)), 1)


def check_counts(function: str, x: Any, over: Sequence[Window]) -> None:
    """Raises where there is no window at all."""
    rank = len(over)
    sizes = x.shape[-1 - rank : -1]
    counts = tuple(w.count(n) for w, n in zip(over, sizes, strict=True))
    if min(counts) < 1:
        raise ValueError(
            f"{function}: Given input size {tuple(sizes)}. Calculated output size {counts}. "
            "Output size is too small."
        )
