"""Validate a module, an optimizer and a loss, and turn arrays into shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx


def as_shapes(net: nnx.Module) -> nnx.Module:
    """Return the module without values, so that none of the user's arrays move."""
    definition, state = nnx.split(net, graph=True)
    # Through eval_shape, because some leaves are keys or numbers that have no shape attribute.
    return nnx.merge(definition, jax.eval_shape(lambda state: state, state))


def transformation(optimizer: Any, function: str) -> optax.GradientTransformation:
    """Return the optax transformation of an optimizer; for None, one without state."""
    if optimizer is None:
        return optax.identity()
    if isinstance(optimizer, nnx.Optimizer):
        return optimizer.tx
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise TypeError(
            f"{function}: optimizer must be an optax transformation (optax.adam(1e-3)) or an nnx.Optimizer, "
            f"not a {type(optimizer).__name__}."
        )
    return optimizer


def optimizer_of(net: nnx.Module, tx: optax.GradientTransformation) -> nnx.Optimizer:
    return nnx.eval_shape(lambda net: nnx.Optimizer(net, tx, wrt=nnx.Param), net, graph=True)


def scalar(loss_fn: Callable[..., Any], function: str) -> Callable[..., jax.Array]:
    """Return `loss_fn` with a check that raises TypeError if the result is not a scalar."""

    def checked(*args: Any) -> jax.Array:
        loss = loss_fn(*args)
        if jnp.shape(loss) != ():
            raise TypeError(
                f"{function}: loss_fn must return a scalar and returned shape {jnp.shape(loss)}; "
                "take its mean or its sum."
            )
        return jnp.asarray(loss)

    return checked
