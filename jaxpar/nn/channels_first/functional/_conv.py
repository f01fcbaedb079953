"""Convolutions with torch's weights, (O, I / groups, *k), of [N, I, *S]."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ... import functional as last
from ..axes import turned


def _kernel(weight: jax.Array) -> jax.Array:
    return jnp.moveaxis(weight, (0, 1), (-1, -2))


def conv1d(x: jax.Array, weight: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """`jaxpar.nn.functional.conv` over one axis; weight (O, I / groups, *k).

    torch counterpart: `F.conv1d`.
    """
    return turned(lambda rows: last.conv(rows, _kernel(weight), *args, **options), x, 1)


def conv2d(x: jax.Array, weight: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """`jaxpar.nn.functional.conv` over two axes; weight (O, I / groups, *k).

    torch counterpart: `F.conv2d`.
    """
    return turned(lambda rows: last.conv(rows, _kernel(weight), *args, **options), x, 2)


def conv3d(x: jax.Array, weight: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """`jaxpar.nn.functional.conv` over three axes; weight (O, I / groups, *k).

    torch counterpart: `F.conv3d`.
    """
    return turned(lambda rows: last.conv(rows, _kernel(weight), *args, **options), x, 3)


def conv_transpose1d(x: jax.Array, weight: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """`jaxpar.nn.functional.conv_transpose` over one axis; weight (I, O / groups, *k).

    torch counterpart: `F.conv_transpose1d`.
    """
    return turned(lambda rows: last.conv_transpose(rows, _kernel(weight), *args, **options), x, 1)


def conv_transpose2d(x: jax.Array, weight: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """`jaxpar.nn.functional.conv_transpose` over two axes; weight (I, O / groups, *k).

    torch counterpart: `F.conv_transpose2d`.
    """
    return turned(lambda rows: last.conv_transpose(rows, _kernel(weight), *args, **options), x, 2)


def conv_transpose3d(x: jax.Array, weight: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """`jaxpar.nn.functional.conv_transpose` over three axes; weight (I, O / groups, *k).

    torch counterpart: `F.conv_transpose3d`.
    """
    return turned(lambda rows: last.conv_transpose(rows, _kernel(weight), *args, **options), x, 3)
