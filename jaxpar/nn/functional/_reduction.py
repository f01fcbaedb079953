"""Reduction of losses, checks of targets, and functions with torch's gradient at a kink."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..._arguments import warn
from ...errors import RangeError


def reduce(loss: jax.Array, reduction: str) -> jax.Array:
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def absolute(x: jax.Array) -> jax.Array:
    """|x|, with the gradient 0 at 0, where JAX has 1."""
    return x * jax.lax.stop_gradient(jnp.sign(x))


def clamp_min(x: jax.Array, least: float) -> jax.Array:
    """max(x, least), with the gradient 0 at equality, as torch.clamp_min from 2.14; jnp.maximum has half."""
    return jnp.where(x <= least, least, x)


def broadcast_pair(input: ArrayLike, target: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Broadcast two arrays to one shape and type; warn as torch does."""
    input, target = values(input, "input"), values(target, "target")
    if input.shape != target.shape:
        warn(
            f"Using a target size ({target.shape}) that is different to the input size ({input.shape}). This "
            "will likely lead to incorrect results due to broadcasting. "
            "Please ensure they have the same size."
        )
    dtype = jnp.result_type(input, target)
    shape = jnp.broadcast_shapes(input.shape, target.shape)
    return jnp.broadcast_to(input.astype(dtype), shape), jnp.broadcast_to(target.astype(dtype), shape)


def targets(target: ArrayLike, error: type[Exception] = IndexError, text: str = "") -> jax.Array:
    """Return a loss's classes or signs; raise torch's error where JAX would wrap one to a valid class."""
    worst = wrapped(target)
    if worst is not None:
        raise error(text or f"Target {worst} is out of bounds.")
    return jnp.asarray(target)


def values(x: ArrayLike, name: str) -> jax.Array:
    """Return numbers as a JAX array; raise RangeError where JAX would wrap one or make it infinite."""
    worst = wrapped(x)
    if worst is not None:
        raise RangeError(
            f"{name} holds the integer {worst}, which JAX would wrap to 32 bits. Turn jax_enable_x64 on, or "
            "pass floats."
        )
    largest = infinite(x)
    if largest is not None:
        raise RangeError(
            f"{name} holds {largest:g}, of which JAX would make infinity in 32 bits. Turn jax_enable_x64 on, "
            "or pass smaller numbers."
        )
    return jnp.asarray(x)


def wrapped(x: ArrayLike) -> int | None:
    """Return the smallest or largest host integer that JAX would wrap to a different one."""
    host = _on_host(x)
    if host is None or host.dtype.kind not in "iu" or not host.size:
        return None
    limits = np.iinfo(jax.dtypes.canonicalize_dtype(host.dtype))
    extremes = int(host.min()), int(host.max())
    return next((n for n in extremes if not limits.min <= n <= limits.max), None)


def infinite(x: ArrayLike) -> float | None:
    """Return the host float64 farthest beyond float32's range, if JAX would convert it."""
    host = _on_host(x)
    if host is None or host.dtype != np.float64 or jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        return None
    numbers = host[np.isfinite(host)]
    worst = max(numbers.max(initial=0), numbers.min(initial=0), key=abs)
    return float(worst) if abs(worst) > np.finfo(np.float32).max else None


def _on_host(x: ArrayLike) -> np.ndarray | None:
    if isinstance(x, bool) or not isinstance(x, np.ndarray | np.generic | int | float | list | tuple):
        return None
    if isinstance(x, list | tuple) and any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x)):
        return None
    return np.asarray(x)
