"""Functions of [N, C, *S] that jaxpar.nn.functional has for [N, *S, C]: pools, resizing, windows, norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ... import functional as last
from ..axes import turned


def max_pool1d(x: jax.Array, *args: Any, **options: Any) -> Any:
    """`jaxpar.nn.functional.max_pool` of [N, C, L] or [C, L].

    torch counterpart: `F.max_pool1d`.
    """
    return turned(lambda rows: last.max_pool(rows, *args, **options), x, 1)


def max_pool2d(x: jax.Array, *args: Any, **options: Any) -> Any:
    """`jaxpar.nn.functional.max_pool` of [N, C, H, W] or [C, H, W].

    torch counterpart: `F.max_pool2d`.
    """
    return turned(lambda rows: last.max_pool(rows, *args, **options), x, 2)


def max_pool3d(x: jax.Array, *args: Any, **options: Any) -> Any:
    """`jaxpar.nn.functional.max_pool` of [N, C, D, H, W] or [C, D, H, W].

    torch counterpart: `F.max_pool3d`.
    """
    return turned(lambda rows: last.max_pool(rows, *args, **options), x, 3)


def avg_pool1d(x: jax.Array, *args: Any, **options: Any) -> Any:
    """`jaxpar.nn.functional.avg_pool` of [N, C, L] or [C, L].

    torch counterpart: `F.avg_pool1d`.
    """
    return turned(lambda rows: last.avg_pool(rows, *args, **options), x, 1)


def avg_pool2d(x: jax.Array, *args: Any, **options: Any) -> Any:
    """`jaxpar.nn.functional.avg_pool` of [N, C, H, W] or [C, H, W].

    torch counterpart: `F.avg_pool2d`.
    """
    return turned(lambda rows: last.avg_pool(rows, *args, **options), x, 2)


def avg_pool3d(x: jax.Array, *args: Any, **options: Any) -> Any:
    """`jaxpar.nn.functional.avg_pool` of [N, C, D, H, W] or [C, D, H, W].

    torch counterpart: `F.avg_pool3d`.
    """
    return turned(lambda rows: last.avg_pool(rows, *args, **options), x, 3)


def lp_pool1d(x: jax.Array, *args: Any, **options: Any) -> Any:
    """`jaxpar.nn.functional.lp_pool` of [N, C, L] or [C, L].

    torch counterpart: `F.lp_pool1d`.
    """
    return turned(lambda rows: last.lp_pool(rows, *args, **options), x, 1)


def lp_pool2d(x: jax.Array, *args: Any, **options: Any) -> Any:
    """`jaxpar.nn.functional.lp_pool` of [N, C, H, W] or [C, H, W].

    torch counterpart: `F.lp_pool2d`.
    """
    return turned(lambda rows: last.lp_pool(rows, *args, **options), x, 2)


def lp_pool3d(x: jax.Array, *args: Any, **options: Any) -> Any:
    """`jaxpar.nn.functional.lp_pool` of [N, C, D, H, W] or [C, D, H, W].

    torch counterpart: `F.lp_pool3d`.
    """
    return turned(lambda rows: last.lp_pool(rows, *args, **options), x, 3)


def adaptive_avg_pool1d(x: jax.Array, *args: Any, **options: Any) -> Any:
    """`jaxpar.nn.functional.adaptive_avg_pool` of [N, C, L] or [C, L].

    torch counterpart: `F.adaptive_avg_pool1d`.
    """
    return turned(lambda rows: last.adaptive_avg_pool(rows, *args, **options), x, 1)


def adaptive_avg_pool2d(x: jax.Array, *args: Any, **options: Any) -> Any:
    """`jaxpar.nn.functional.adaptive_avg_pool` of [N, C, H, W] or [C, H, W].

    torch counterpart: `F.adaptive_avg_pool2d`.
    """
    return turned(lambda rows: last.adaptive_avg_pool(rows, *args, **options), x, 2)


def adaptive_avg_pool3d(x: jax.Array, *args: Any, **options: Any) -> Any:
    """`jaxpar.nn.functional.adaptive_avg_pool` of [N, C, D, H, W] or [C, D, H, W].

    torch counterpart: `F.adaptive_avg_pool3d`.
    """
    return turned(lambda rows: last.adaptive_avg_pool(rows, *args, **options), x, 3)


def adaptive_max_pool1d(x: jax.Array, *args: Any, **options: Any) -> Any:
    """`jaxpar.nn.functional.adaptive_max_pool` of [N, C, L] or [C, L].

    torch counterpart: `F.adaptive_max_pool1d`.
    """
    return turned(lambda rows: last.adaptive_max_pool(rows, *args, **options), x, 1)


def adaptive_max_pool2d(x: jax.Array, *args: Any, **options: Any) -> Any:
    """`jaxpar.nn.functional.adaptive_max_pool` of [N, C, H, W] or [C, H, W].

    torch counterpart: `F.adaptive_max_pool2d`.
    """
    return turned(lambda rows: last.adaptive_max_pool(rows, *args, **options), x, 2)


def adaptive_max_pool3d(x: jax.Array, *args: Any, **options: Any) -> Any:
    """`jaxpar.nn.functional.adaptive_max_pool` of [N, C, D, H, W] or [C, D, H, W].

    torch counterpart: `F.adaptive_max_pool3d`.
    """
    return turned(lambda rows: last.adaptive_max_pool(rows, *args, **options), x, 3)


def interpolate(x: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """`jaxpar.nn.functional.interpolate` of [N, C, *S].

    torch counterpart: `F.interpolate`.
    """
    return turned(lambda rows: last.interpolate(rows, *args, **options), x)


def pixel_shuffle(x: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """`jaxpar.nn.functional.pixel_shuffle` of [N, C, *S].

    torch counterpart: `F.pixel_shuffle`.
    """
    return turned(lambda rows: last.pixel_shuffle(rows, *args, **options), x, 2)


def pixel_unshuffle(x: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """`jaxpar.nn.functional.pixel_unshuffle` of [N, C, *S].

    torch counterpart: `F.pixel_unshuffle`.
    """
    return turned(lambda rows: last.pixel_unshuffle(rows, *args, **options), x, 2)


def channel_shuffle(x: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """`jaxpar.nn.functional.channel_shuffle` of [N, C, *S].

    torch counterpart: `F.channel_shuffle`.
    """
    return turned(lambda rows: last.channel_shuffle(rows, *args, **options), x)


def unfold(x: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """`jaxpar.nn.functional.unfold` of [N, C, *S].

    torch counterpart: `F.unfold`.
    """
    return turned(lambda rows: last.unfold(rows, *args, **options), x)


def group_norm(x: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """`jaxpar.nn.functional.group_norm` of [N, C, *S].

    torch counterpart: `F.group_norm`.
    """
    return turned(lambda rows: last.group_norm(rows, *args, **options), x)


def instance_norm(x: jax.Array, **options: Any) -> jax.Array:
    """`jaxpar.nn.functional.instance_norm` of [N, C, *S], without running statistics.

    torch counterpart: `F.instance_norm`.
    """
    return turned(lambda rows: last.instance_norm(rows, **options)[0], x)


def local_response_norm(x: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """`jaxpar.nn.functional.local_response_norm` of [N, C, *S].

    torch counterpart: `F.local_response_norm`.
    """
    return turned(lambda rows: last.local_response_norm(rows, *args, **options), x)


def fold(x: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """`jaxpar.nn.functional.fold`: [N, C K, L] to [N, C, *output_size].

    torch counterpart: `F.fold`.
    """
    return turned(lambda rows: last.fold(rows, *args, **options), x, 1)


def grid_sample(x: jax.Array, grid: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """`jaxpar.nn.functional.grid_sample` of [N, C, *S] at a grid [N, *T, n].

    torch counterpart: `F.grid_sample`.
    """
    return turned(lambda rows: last.grid_sample(rows, grid, *args, **options), x)


def prelu(x: jax.Array, weight: jax.Array) -> jax.Array:
    """`jaxpar.nn.functional.prelu` of [N, C, *S]. torch counterpart: `F.prelu`."""
    return turned(lambda rows: last.prelu(rows, weight), x) if x.ndim > 1 else last.prelu(x, weight)


def pad(x: jax.Array, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> jax.Array:
    """`jaxpar.nn.functional.pad` of the last axes of x, the last one first.

    torch counterpart: `F.pad`.
    """
    return last.pad(jnp.expand_dims(x, -1), pad, mode, value)[..., 0]


def normalize(x: jax.Array, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> jax.Array:
    """Divides x by its p-norm along `dim`, torch's 1 if left out. torch counterpart: `F.normalize`."""
    return last.normalize(x, p, dim, eps)
