"""weight_norm and spectral_norm: kernels computed from other arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..._arguments import NonNegative, Positive
from ._similarity import normalize


def weight_norm(kernel: jax.Array, scale: jax.Array, dim: int | None = -1) -> jax.Array:
    """kernel * scale / |kernel|: length and direction separately.

    Args:
      kernel: [..., O], the direction.
      scale: [O], the norms over all axes but `dim`; [] for dim=None.
      dim: the axis along which each part has its own norm; None for one norm over all axes.

    Returns: The kernel's shape.

    torch counterpart: `torch._weight_norm`. Source: ATen/native/WeightNorm.cpp.
    """
    axes = tuple(a for a in range(kernel.ndim) if dim is None or a != dim % kernel.ndim)
    norms = jnp.sqrt(jnp.square(kernel).sum(axes, keepdims=True))
    return kernel * (scale.reshape(norms.shape) / norms)


def spectral_norm(
    kernel: jax.Array,
    u: jax.Array,
    v: jax.Array,
    n_power_iterations: Positive = 1,
    eps: NonNegative = 1e-12,
    dim: int = -1,
    training: bool = True,
    first: str = "u",
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The kernel divided by its largest singular value, as a matrix of `dim` against all other axes.

    Args:
      kernel: two axes or more.
      u: the left singular vector, as estimated so far, [O], O being the size of axis `dim`.
      v: the right one, of the kernel's shape without `dim`.
      n_power_iterations: how often u and v are improved, in training.
      eps: a lower bound of the norms that u and v are divided by.
      training: if False, u and v are used as they are.
      first: the vector that an iteration improves first, "u" or "v".

    Returns: The divided kernel, u and v. Gradients go through the kernel, not through u and v.

    torch counterpart: `torch.nn.utils.parametrizations.spectral_norm`; with `first="v"`, the older
    `torch.nn.utils.spectral_norm`. torch keeps v in one row, in the order of its own weight. Source:
    torch/nn/utils/parametrizations.py and spectral_norm.py.
    """
    matrix = jnp.moveaxis(kernel, dim, 0)
    # As in torch the iteration is not differentiated: the gradient passes through the kernel in sigma alone.
    constant = jax.lax.stop_gradient(matrix)
    for step in range(2 * n_power_iterations if training else 0):
        if (step % 2 == 0) == (first == "u"):
            u = _unit(_matvec(constant, v), eps)
        else:
            v = _unit(jnp.tensordot(u, constant, 1, precision="highest"), eps)
    u, v = jax.lax.stop_gradient((u, v))
    sigma = jnp.vdot(u, _matvec(matrix, v), precision="highest")
    return kernel / sigma, u, v


def _unit(x: jax.Array, eps: NonNegative) -> jax.Array:
    return normalize(x.reshape(-1), dim=0, eps=eps).reshape(x.shape)


def _matvec(matrix: jax.Array, v: jax.Array) -> jax.Array:
    # The default precision, TF32 on GPUs and bfloat16 on TPUs, is too coarse for a norm by which the kernel
    # is divided.
    return jnp.tensordot(matrix, v, v.ndim, precision="highest")
