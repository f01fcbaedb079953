"""What the losses share: their reduction, and pieces whose gradient at a kink is torch's, not JAX's."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike


def reduce(loss: jax.Array, reduction: str) -> jax.Array:
    """The losses as they are, their mean or their sum."""
    check_reduction(reduction)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def check_reduction(reduction: str, allowed: tuple[str, ...] = ("none", "mean", "sum")) -> None:
    if reduction not in allowed:
        raise ValueError(f"{reduction} is not a valid value for reduction")


def absolute(x: jax.Array) -> jax.Array:
    """|x|, with the gradient 0 at 0, where JAX has 1."""
    return x * jax.lax.stop_gradient(jnp.sign(x))


def clamp_min(x: jax.Array, least: float) -> jax.Array:
    """max(x, least), with the gradient 0 at equality, as torch.clamp_min from 2.14; jnp.maximum has half."""
    return jnp.where(x <= least, least, x)


def broadcast_pair(input: ArrayLike, target: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Two arrays of one shape and type; broadcasting warns, in torch's words."""
    input, target = jnp.asarray(input), jnp.asarray(target)
    if input.shape != target.shape:
        warnings.warn(
            f"Using a target size ({target.shape}) that is different to the input size ({input.shape}). This "
            "will likely lead to incorrect results due to broadcasting. "
            "Please ensure they have the same size.",
            stacklevel=3,
        )
    dtype = jnp.result_type(input, target)
    shape = jnp.broadcast_shapes(input.shape, target.shape)
    return jnp.broadcast_to(input.astype(dtype), shape), jnp.broadcast_to(target.astype(dtype), shape)


def targets(target: ArrayLike) -> jax.Array:
    """A loss's targets as an array of JAX.

    Raises IndexError for a class of a host array that has no place in JAX's integers, which would wrap it to
    another class.
    """
    if isinstance(target, np.ndarray | int | list) and not isinstance(target, bool):
        host = np.asarray(target)
        if host.dtype.kind in "iu" and host.size:
            limits = np.iinfo(jax.dtypes.canonicalize_dtype(host.dtype))
            for worst in (host.min(), host.max()):
                if not limits.min <= worst <= limits.max:
                    raise IndexError(f"Target {worst} is out of bounds.")
    return jnp.asarray(target)
