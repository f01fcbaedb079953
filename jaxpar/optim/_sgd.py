"""SGD with momentum, dampening and Nesterov's form."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._typing import PyTree
from . import _hyperparameters as hyper
from ._hyperparameters import Scalar, ScalarOrSchedule, settable
from ._leafwise import gradient_stages, leafwise, scale_by_lr, zeros


class MomentumState(NamedTuple):
    step: jax.Array
    momentum_buffer: PyTree


@settable("lr", "momentum")
def sgd(
    lr: ScalarOrSchedule = 1e-3,
    momentum: ScalarOrSchedule = 0.0,
    dampening: Scalar = 0.0,
    weight_decay: Scalar = 0.0,
    nesterov: bool = False,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Stochastic gradient descent as `torch.optim.SGD` (torch/optim/sgd.py), with its errors.

    `optax.sgd` has no dampening.

    Args:
      lr, momentum: a number, an array or a schedule.
      dampening: the first gradient enters the buffer whole, later ones times 1 - dampening.
      weight_decay: added to the gradient, times the parameter.
      nesterov: step along gradient + momentum * buffer.
      maximize: ascend.

    >>> import jax.numpy as jnp
    >>> from jaxpar import optim
    >>> tx = optim.sgd(lr=0.1, momentum=0.9)
    >>> update, state = tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
    >>> print(update.round(3))
    [-0.1 -0.1]
    """
    hyper.check_nonnegative(lr=lr, momentum=momentum, weight_decay=weight_decay)
    hyper.check_numbers(dampening=dampening)
    if nesterov and (
        (hyper.is_number(momentum) and momentum <= 0) or (hyper.is_number(dampening) and dampening != 0)
    ):
        raise ValueError("Nesterov momentum requires a momentum and zero dampening")
    stages = gradient_stages(weight_decay, maximize)
    return optax.chain(*stages, *momentum_stages(momentum, dampening, nesterov), scale_by_lr(lr, "sgd"))


def momentum_stages(
    momentum: ScalarOrSchedule, dampening: Scalar, nesterov: bool
) -> list[optax.GradientTransformation]:
    # An array or a schedule always gets a buffer, because its value is unknown until the program runs.
    return [] if hyper.is_zero(momentum) else [_momentum(momentum, dampening, nesterov)]


def _momentum(momentum: ScalarOrSchedule, dampening: Scalar, nesterov: bool) -> optax.GradientTransformation:
    """Build `optax.trace` with dampening, a momentum that may change, and a buffer that keeps its type."""

    def init(params):
        return MomentumState(hyper.new_counter(), zeros(params))

    def update(grads, state, params=None):
        now = hyper.value_at(momentum, state.step)
        # torch initialises the buffer with the first gradient, undamped.
        fresh = 1.0 if hyper.is_zero(dampening) else jnp.where(state.step == 0, 1.0, 1 - dampening)

        def rule(s, g, buffer):
            mu, part = s
            buffer = mu * buffer + part * g
            return (g + mu * buffer if nesterov else buffer), buffer

        updates, buffer = leafwise(rule, (now, fresh), grads, [state.momentum_buffer])
        return updates, MomentumState(optax.safe_increment(state.step), buffer)

    return optax.GradientTransformation(init, update)
