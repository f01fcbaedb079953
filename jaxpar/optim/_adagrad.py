"""Adagrad, Adadelta and RMSprop: steps divided by the root of a sum or a mean of squared gradients."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._typing import PyTree
from ._hyperparameters import (
    Scalar,
    ScalarOrSchedule,
    as_float,
    check_nonnegative,
    check_numbers,
    is_number,
    new_counter,
    settable,
    value_at,
)
from ._leafwise import chain, gradient_stages, leafwise, scale_by_lr
from ._sgd import momentum_stages


class AdagradState(NamedTuple):
    step: jax.Array
    sum: PyTree


@settable("lr")
def adagrad(
    lr: ScalarOrSchedule = 1e-2,
    lr_decay: Scalar = 0.0,
    weight_decay: Scalar = 0.0,
    initial_accumulator_value: Scalar = 0.0,
    eps: Scalar = 1e-10,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Adagrad as `torch.optim.Adagrad` (torch/optim/adagrad.py).

    Args:
      lr, weight_decay, maximize: as for `sgd`; so are the errors.
      lr_decay: the rate of step t, from 0, is lr / (1 + t * lr_decay).
      initial_accumulator_value: the initial sum of squares.
      eps: added to the root of the sum; `optax.adagrad` adds it under the root.

    >>> from jaxpar import optim
    >>> tx = optim.adagrad(lr=1e-2, lr_decay=1e-4)
    """
    check_nonnegative(
        lr=lr,
        lr_decay=lr_decay,
        weight_decay=weight_decay,
        initial_accumulator_value=initial_accumulator_value,
        eps=eps,
    )

    def init(params):
        return AdagradState(new_counter(), optax.tree.full_like(params, initial_accumulator_value))

    def update(grads, state, params=None):
        # torch counts this step from 0: the first one has the full rate.
        rate = value_at(lr, state.step) / (1 + as_float(state.step) * lr_decay)

        def rule(s, g, total):
            rate, eps = s
            total = total + g * g
            return -rate * (g / (jnp.sqrt(total) + eps)), total

        updates, total = leafwise(rule, (rate, eps), grads, [state.sum])
        return updates, AdagradState(optax.safe_increment(state.step), total)

    return chain(gradient_stages(weight_decay, maximize), init, update, "adagrad")


@settable("lr")
def adadelta(
    lr: ScalarOrSchedule = 1.0,
    rho: Scalar = 0.9,
    eps: Scalar = 1e-6,
    weight_decay: Scalar = 0.0,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Adadelta as `torch.optim.Adadelta` (torch/optim/adadelta.py).

    Args:
      lr, weight_decay, maximize: as for `sgd`; so are the errors.
      rho: decay of both means, of squared gradients and of squared updates.
      eps: added under both roots.

    >>> from jaxpar import optim
    >>> tx = optim.adadelta(lr=1.0, rho=0.9)
    """
    check_nonnegative(lr=lr)
    check_numbers(rho=rho)
    if is_number(rho) and not 0 <= rho <= 1:
        raise ValueError(f"Invalid rho value: {rho}")
    check_nonnegative(eps=eps, weight_decay=weight_decay)
    stages = gradient_stages(weight_decay, maximize)
    return optax.chain(*stages, optax.scale_by_adadelta(rho, eps), scale_by_lr(lr, "adadelta"))


@settable("lr", "momentum")
def rmsprop(
    lr: ScalarOrSchedule = 1e-2,
    alpha: Scalar = 0.99,
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    momentum: ScalarOrSchedule = 0.0,
    centered: bool = False,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """RMSprop as torch does it.

    Args:
      lr, momentum, weight_decay, maximize: as for `sgd`; so are the errors.
      alpha: decay of the mean square.
      eps: added to the root.
      centered: divide by the standard deviation instead of the root of the mean square.

    torch counterpart: `torch.optim.RMSprop`. `optax.rmsprop` applies the learning rate before the momentum,
    which differs as soon as it changes. Source: torch/optim/rmsprop.py.

    >>> from jaxpar import optim
    >>> tx = optim.rmsprop(lr=1e-2, momentum=0.9, centered=True)
    """
    check_nonnegative(lr=lr, eps=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha)
    scale = optax.scale_by_stddev if centered else optax.scale_by_rms
    return optax.chain(
        *gradient_stages(weight_decay, maximize),
        scale(alpha, eps, eps_in_sqrt=False),
        *momentum_stages(momentum, 0, False),
        scale_by_lr(lr, "rmsprop"),
    )
