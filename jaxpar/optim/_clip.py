"""Clipping gradients, by their norm or by value."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .._arguments import Extended, Limit
from .._typing import PyTree


class ClipGradNormState(NamedTuple):
    total_norm: jax.Array


def clip_grad_norm(
    max_norm: Limit, norm_type: Extended = 2.0, error_if_nonfinite: bool = False
) -> optax.GradientTransformation:
    """Scale all gradients by min(1, max_norm / (total_norm + 1e-6)).

    Args:
      max_norm: the largest norm that all gradients together may have.
      norm_type: p of the p-norm; `float("inf")` for the largest magnitude.
      error_if_nonfinite: raise RuntimeError if the norm is inf or nan, also from inside `jax.jit` (through a
        host callback, which costs time; donated arrays are lost).

    The norm before clipping is in the state: `optax.tree.get(state, "total_norm")`.

    torch counterpart: `torch.nn.utils.clip_grad_norm_`. `optax.clip_by_global_norm` lacks the 1e-6, has only
    the 2-norm, and does not return the norm. Source: torch/nn/utils/clip_grad.py.

    >>> import optax
    >>> from jaxpar import optim
    >>> tx = optax.chain(optim.clip_grad_norm(1.0), optim.sgd(lr=0.1))
    """
    max_norm, norm_type = float(max_norm), float(norm_type)

    def init(params):
        return ClipGradNormState(jnp.zeros((), _wide(params)))

    def update(updates, state, params=None):
        total = get_total_norm(updates, norm_type, error_if_nonfinite)
        # torch adds 1e-6 before dividing, so the clipped norm is slightly below max_norm.
        factor = jnp.minimum(1.0, max_norm / (total + 1e-6))
        # Cast the factor: a float32 scalar array would widen half-precision gradients.
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), updates), ClipGradNormState(total)

    return optax.GradientTransformation(init, update)


def clip_grad_value(clip_value: Limit) -> optax.GradientTransformation:
    """Clip every element to [-clip_value, clip_value], as `torch.nn.utils.clip_grad_value_`.

    >>> import jax.numpy as jnp
    >>> from jaxpar import optim
    >>> tx = optim.clip_grad_value(0.5)
    >>> print(tx.update(jnp.array([-2.0, 0.25]), tx.init(None))[0])
    [-0.5   0.25]
    """
    return optax.clip(float(clip_value))


def get_total_norm(tensors: PyTree, norm_type: Extended = 2.0, error_if_nonfinite: bool = False) -> jax.Array:
    """Return a tree's norm as `torch.nn.utils.get_total_norm`; RuntimeError as in `clip_grad_norm`.

    >>> import jax.numpy as jnp
    >>> from jaxpar import optim
    >>> print(optim.get_total_norm({"w": jnp.array([3.0]), "b": jnp.array([4.0])}))
    5.0
    """
    norm_type, wide = float(norm_type), _wide(tensors)
    # As in torch: a norm of the concatenated gradients would copy them all and round differently.
    norms = [jnp.linalg.norm(jnp.ravel(g).astype(wide), norm_type) for g in jax.tree.leaves(tensors)]
    total = jnp.linalg.norm(jnp.stack(norms), norm_type) if norms else jnp.zeros((), wide)
    if not error_if_nonfinite:
        return total
    check = functools.partial(_finite, norm_type)
    if not isinstance(total, jax.core.Tracer):
        check(total)
        return total
    # The callback returns the norm itself: so XLA cannot drop it, and all that depends on the norm waits.
    return jax.pure_callback(check, total, total, vmap_method="sequential")


def _wide(tree: PyTree) -> jnp.dtype:
    return jnp.result_type(jnp.float32, *map(jnp.asarray, jax.tree.leaves(tree)))


def _finite(norm_type: Extended, total: jax.Array) -> np.ndarray:
    if not np.isfinite(total):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it "
            "cannot be clipped. To disable this error and scale the gradients by the non-finite norm "
            "anyway, set `error_if_nonfinite=False`"
        )
    return np.asarray(total)
