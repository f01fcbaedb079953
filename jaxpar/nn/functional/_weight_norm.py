"""weight_norm and spectral_norm: kernels that are computed from other arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ._normalize import normalize


def weight_norm(kernel: jax.Array, scale: jax.Array, dim: int | None = -1) -> jax.Array:
    """kernel * scale / |kernel|: length and direction apart.

    Args:
      kernel: [..., O], the direction.
      scale: [O], the norms over all axes but `dim`; [] for dim=None.
      dim: the axis whose parts have norms of their own; None for one norm of everything.

    Returns:
      The kernel's shape.

    torch counterpart: `torch._weight_norm`. Source: ATen/native/WeightNorm.cpp.
    """
    norms = norm_except(kernel, dim)
    return kernel * (scale.reshape(norms.shape) / norms)


def norm_except(kernel: jax.Array, dim: int | None) -> jax.Array:
    """The norm over all axes but `dim`, which keep the size 1."""
    axes = tuple(a for a in range(kernel.ndim) if dim is None or a != dim % kernel.ndim)
    return jnp.sqrt(jnp.square(kernel).sum(axes, keepdims=True))


def spectral_norm(
    kernel: jax.Array,
    u: jax.Array,
    v: jax.Array,
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int = -1,
    training: bool = True,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The kernel divided by its largest singular value, as a matrix of `dim` against all other axes.

    Args:
      kernel: two axes or more.
      u: the left singular vector as known so far, [O], O being the size of axis `dim`.
      v: the right one, of the kernel's shape without `dim`.
      n_power_iterations: how often u and v are improved, in training.
      eps: the least norm that u and v are divided by.
      training: without it u and v are taken as they are.

    Returns:
      The divided kernel, u and v. Gradients go through the kernel, not through u and v.

    torch counterpart: `torch.nn.utils.parametrizations.spectral_norm`; torch keeps v in one row, in
    the order of its own weight. Source: torch/nn/utils/parametrizations.py.
    """
    matrix = jnp.moveaxis(kernel, dim, 0)
    if training:
        u, v = power_iterations(jax.lax.stop_gradient(matrix), u, v, n_power_iterations, eps)
    u, v = jax.lax.stop_gradient((u, v))
    sigma = jnp.vdot(u, _times(matrix, v), precision="highest")
    return kernel / sigma, u, v


def power_iterations(
    matrix: jax.Array, u: jax.Array, v: jax.Array, n: int, eps: float
) -> tuple[jax.Array, jax.Array]:
    """u and v nearer to the singular vectors of `matrix` [O, ...]."""
    for _ in range(n):
        u = unit(_times(matrix, v), eps)
        v = unit(jnp.tensordot(u, matrix, 1, precision="highest"), eps)
    return u, v


def unit(x: jax.Array, eps: float) -> jax.Array:
    """x divided by the norm of all of it."""
    return normalize(x.reshape(-1), dim=0, eps=eps).reshape(x.shape)


def _times(matrix: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.tensordot(matrix, v, v.ndim, precision="highest")
