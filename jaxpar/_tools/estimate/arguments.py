"""What the user passed, as shapes: a module, an optimizer, a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx


def as_shapes(net: nnx.Module) -> nnx.Module:
    """The same module without values, so that no array of the user's moves."""
    definition, state = nnx.split(net, graph=True)
    return nnx.merge(definition, jax.eval_shape(lambda state: state, state))


def transformation(optimizer: Any, function: str) -> optax.GradientTransformation:
    """That of an optimizer; None is one that has no state.

    Raises:
      TypeError: not an optimizer.
    """
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
    """The net's optimizer without values."""
    return nnx.eval_shape(lambda net: nnx.Optimizer(net, tx, wrt=nnx.Param), net, graph=True)


def scalar(loss_fn: Callable[..., Any], function: str) -> Callable[..., jax.Array]:
    """`loss_fn`, which must return one number.

    Raises, when called:
      TypeError: it returns something else.
    """

    def checked(*args: Any) -> jax.Array:
        loss = loss_fn(*args)
        if jnp.shape(loss) != ():
            raise TypeError(
                f"{function}: loss_fn must return a scalar and returned shape {jnp.shape(loss)}; "
                "take its mean or its sum."
            )
        return jnp.asarray(loss)

    return checked
