"""grid_sample and affine_grid: an image read at arbitrary positions, (x, y) or (x, y, z).

The last axis of the image comes first. -1 and 1 are the centres of the first and the last pixel with
align_corners, their outer edges without.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")
CUBIC = -0.75
"""The cubic kernel's parameter, as in `interpolate`."""


def grid_sample(
    x: jax.Array,
    grid: jax.Array,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> jax.Array:
    """x at the positions of `grid`.

    Args:
      x: [N, *S, C] with two or three spatial axes.
      grid: [N, *T, 2] or [N, *T, 3], the last axis of x first.
      mode: "bilinear" (trilinear for three axes), "nearest", or "bicubic" (two axes only).
      padding_mode: the values outside of x: "zeros", the nearest pixel of the "border", or x mirrored
        ("reflection").
      align_corners: see above; None is False.

    Returns: [N, *T, C]. Gradients go to x and, except for "nearest", to `grid`; where a position is clipped,
    at the border and beyond, the gradient of `grid` is 0, as in torch. Raises: ValueError: an unknown mode;
    shapes that do not fit.

    torch counterpart: `torch.nn.functional.grid_sample`. Source: ATen/native/GridSampler.h.
    """
    _check(x, grid, mode, padding_mode)
    return _grid_sample(x, grid, mode, padding_mode, bool(align_corners))


def affine_grid(theta: jax.Array, size: Sequence[int], align_corners: bool | None = None) -> jax.Array:
    """The grid for `grid_sample` that maps the result's positions by `theta`, [N, *T, 2] or [N, *T, 3].

    Args:
      theta: [N, 2, 3] or [N, 3, 4].
      size: the shape of the result, [N, *T, C].
      align_corners: as in `grid_sample`.

    Raises: ValueError: shapes that do not fit; a size below 1.

    torch counterpart: `torch.nn.functional.affine_grid`, whose `size` is [N, C, *T].
    """
    rank = len(size) - 2
    if not jnp.issubdtype(theta.dtype, jnp.floating):
        raise ValueError(f"Expected theta to have floating point type, but got {theta.dtype}")
    if rank not in (2, 3) or theta.shape != (size[0], rank, rank + 1):
        raise ValueError(
            "affine_grid: Expected a batch of affine matrices [N, 2, 3] or [N, 3, 4] for a size [N, *T, C], "
            f"but got {theta.shape} for size {tuple(size)}."
        )
    if min(size) <= 0:
        raise ValueError(f"Expected non-zero, positive output size. Got {tuple(size)}")
    return _affine_grid(theta, tuple(size[1:-1]), bool(align_corners))


def _check(x: jax.Array, grid: jax.Array, mode: str, padding_mode: str) -> None:
    if mode not in MODES:
        raise ValueError(
            f"grid_sample(): expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: {mode!r}"
        )
    if padding_mode not in PADDINGS:
        raise ValueError(
            "grid_sample(): expected padding_mode to be 'zeros', 'border', or 'reflection', but got: "
            f"{padding_mode!r}"
        )
    rank = x.ndim - 2
    if rank not in (2, 3) or grid.ndim != x.ndim:
        raise ValueError(
            "grid_sample(): expected 4D or 5D input and grid with same number of dimensions, but got input "
            f"with sizes {x.shape} and grid with sizes {grid.shape}"
        )
    if mode == "bicubic" and rank != 2:
        raise ValueError("grid_sample(): bicubic interpolation only supports 4D input")
    if grid.shape[0] != x.shape[0]:
        raise ValueError(
            "grid_sample(): expected grid and input to have same batch size, but got input with sizes "
            f"{x.shape} and grid with sizes {grid.shape}"
        )
    if grid.shape[-1] != rank:
        raise ValueError(
            f"grid_sample(): expected grid to have size {rank} in last dimension, but got grid with sizes "
            f"{grid.shape}"
        )
    if 0 in x.shape[1:-1]:
        raise ValueError(
            "grid_sample(): expected input to have non-empty spatial dimensions, but input has sizes "
            f"{x.shape}"
        )


@functools.partial(jax.jit, static_argnums=(2, 3, 4), inline=True)
def _grid_sample(
    x: jax.Array, grid: jax.Array, mode: str, padding_mode: str, align_corners: bool
) -> jax.Array:
    sizes = x.shape[1:-1]
    dtype = jnp.promote_types(jnp.result_type(x, grid), jnp.float32)
    # bicubic clips each of its four neighbours, the other modes clip the position: torch does the same.
    outside = functools.partial(_inside, padding_mode=padding_mode, align_corners=align_corners)
    taps = []
    for i, n in enumerate(sizes):
        # The grid's last axis is (x, y, z), the reverse of the order of spatial axes.
        at = grid[..., -1 - i].astype(dtype)
        # torch's order of operations, because rounding decides which pixel "nearest" takes.
        at = (at + 1) / 2 * (n - 1) if align_corners else ((at + 1) * n - 1) / 2
        if mode == "bicubic":
            elements, weights = _cubic(at)
            taps.append((outside(elements, n), weights))
        else:
            taps.append(_linear(outside(at, n)) if mode == "bilinear" else _nearest(outside(at, n)))
    return _read(x, taps).astype(x.dtype)


Taps = tuple[jax.Array, jax.Array]
"""For one axis of x: indices of elements, [N, *T, t], and their weights."""


def _linear(at: jax.Array) -> Taps:
    low = jnp.floor(at)
    return jnp.stack([low, low + 1], -1), jnp.stack([low + 1 - at, at - low], -1)


def _nearest(at: jax.Array) -> Taps:
    # Half to even, as nearbyint in torch.
    at = jnp.round(at)[..., None]
    return at, jnp.ones_like(at)


def _cubic(at: jax.Array) -> Taps:
    low = jnp.floor(at)
    t = at - low

    def near(d: jax.Array) -> jax.Array:
        return ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1

    def far(d: jax.Array) -> jax.Array:
        return ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC

    elements = jnp.stack([low - 1, low, low + 1, low + 2], -1)
    return elements, jnp.stack([far(t + 1), near(t), near(1 - t), far(2 - t)], -1)


def _inside(at: jax.Array, n: int, padding_mode: str, align_corners: bool) -> jax.Array:
    if padding_mode == "zeros":
        return at
    if padding_mode == "reflection":
        at = _reflected(at, 0, n - 1) if align_corners else _reflected(at, -0.5, n - 0.5)
    # As in torch the border itself counts as clipped: jnp.clip alone would pass half of its gradient.
    return jnp.where((at > 0) & (at < n - 1), at, jax.lax.stop_gradient(jnp.clip(at, 0, n - 1)))


def _reflected(at: jax.Array, low: float, high: float) -> jax.Array:
    span = high - low
    if span == 0:
        return jnp.zeros_like(at)
    at = at - low
    # Not abs: its derivative at 0 is 0 in JAX, while torch's reflection keeps the slope there.
    at = jnp.where(at < 0, -at, at)
    offset = jnp.fmod(at, span)
    return jnp.where(jnp.floor(at / span) % 2 == 0, offset, span - offset) + low


def _read(x: jax.Array, taps: Sequence[Taps]) -> jax.Array:
    """The sum of x at all combinations of the axes' elements, times their weights; 0 outside of x."""
    N, *sizes, C = x.shape
    grid_shape = taps[0][0].shape[:-1]
    exists, index, weight = jnp.array(True), jnp.array(0, jnp.int32), jnp.ones((), taps[0][1].dtype)
    for i, ((elements, weights), n) in enumerate(zip(taps, sizes, strict=True)):
        shape = (*grid_shape, *(-1 if j == i else 1 for j in range(len(sizes))))
        elements = elements.reshape(shape)
        # Outside of x the index is clipped to read any element, and `exists` makes its contribution 0.
        exists = exists & (elements >= 0) & (elements < n)
        # NaN has no integer value. `exists` is False there, because comparisons with NaN are.
        index = index * n + jnp.clip(jnp.nan_to_num(elements), 0, n - 1).astype(jnp.int32)
        weight = weight * weights.reshape(shape)
    rows = jnp.arange(N).reshape(N, *[1] * (index.ndim - 1))
    # One gather of complete pixels by a flat index, for all axes together.
    pixels = x.reshape(N, math.prod(sizes), C)[rows, index]
    over = tuple(range(len(grid_shape), index.ndim))
    # Both factors are replaced: either may be NaN or infinite, and its product with 0 would be NaN.
    return (jnp.where(exists[..., None], pixels, 0) * jnp.where(exists, weight, 0)[..., None]).sum(over)


@functools.partial(jax.jit, static_argnums=(1, 2), inline=True)
def _affine_grid(theta: jax.Array, sizes: tuple[int, ...], align_corners: bool) -> jax.Array:
    def axis(n: int) -> jax.Array:
        if n == 1:
            return jnp.zeros(1, theta.dtype)
        line = jnp.linspace(-1, 1, n, dtype=theta.dtype)
        return line if align_corners else line * (n - 1) / n

    lines = jnp.meshgrid(*map(axis, sizes), indexing="ij")
    base = jnp.stack([*reversed(lines), jnp.ones(sizes, theta.dtype)], -1)
    # The default precision, TF32 on GPUs and bfloat16 on TPUs, is too coarse for positions of pixels.
    return jnp.einsum("...k,nrk->n...r", base, theta, precision="highest")
