"""Averaged stochastic gradient descent, which optax lacks."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._arguments import Limit, NonNegative
from .._typing import PyTree
from . import _hyperparameters as hyper
from ._hyperparameters import Scalar, ScalarOrSchedule, settable
from ._leafwise import chain, gradient_stages, leafwise, zeros


class ASGDState(NamedTuple):
    """`eta`, `mu`: the next step's rate and averaging weight. `ax`: the averaged parameters."""

    step: jax.Array
    eta: jax.Array
    mu: jax.Array
    ax: PyTree


@settable("lr")
def asgd(
    lr: ScalarOrSchedule = 1e-2,
    lambd: NonNegative | jax.Array = 1e-4,
    alpha: NonNegative | jax.Array = 0.75,
    t0: Limit | jax.Array = 1e6,
    weight_decay: Scalar = 0.0,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Averaged SGD as torch does it, which averages the new parameters: the last stage of a chain.

    Args:
      weight_decay, maximize: as for `sgd`; so are the errors.
      lr: a number, an array or a schedule, which takes effect one step late, as in torch.
      lambd: decay, of the parameters and inside of the rate lr / (1 + lambd * lr * t)**alpha.
      alpha: the power of that rate.
      t0: the step from which `ax` in the state is an average; before it, `ax` is the parameters.

    torch counterpart: `torch.optim.ASGD`, whose `eta` and `mu` are float32 by default; here they are float64
    under x64. Source: torch/optim/asgd.py.

    >>> from jaxpar import optim
    >>> tx = optim.asgd(lr=1e-2, t0=100)
    """
    hyper.check_nonnegative(lr=lr, weight_decay=weight_decay)
    # t0 counts steps, so it may be an array of integers.
    hyper.check_numbers(lambd=lambd, alpha=alpha, t0=hyper.as_float(t0) if isinstance(t0, jax.Array) else t0)

    def init(params):
        # jnp.array copies: lr may be the caller's array, which donating the state would delete.
        return ASGDState(
            hyper.new_counter(),
            jnp.array(hyper.value_at(lr, hyper.new_counter()), float),
            jnp.ones((), float),
            zeros(params),
        )

    def update(grads, state, params=None):
        hyper.require_params(params, "asgd")
        step = optax.safe_increment(state.step)
        rate = hyper.value_at(lr, state.step)

        def rule(s, g, ax, p):
            eta, mu, decay = s
            shrunk = p * decay
            # torch rounds here. The comparison, which changes no number, keeps XLA from a multiply-add.
            new = jnp.where(shrunk == 0, 0, shrunk) - eta * g
            # mu is exactly 1 before t0: then the average is a copy of the parameters, as in torch.
            return new - p, jnp.where(mu == 1, new, ax + (new - ax) * mu)

        # Like torch's, rounded to the parameters' type: float32 holds two digits of the 1e-6 in 1 - 1e-6.
        scalars = (state.eta, state.mu, 1 - lambd * state.eta)
        updates, ax = leafwise(rule, scalars, grads, [state.ax], params)
        # log1p, because 1 + lambd * lr * t loses the digits of the product: with torch's defaults it is 1e-6
        # at the first step, and float32 resolves 1e-7 there.
        eta = rate * jnp.exp(-alpha * jnp.log1p(lambd * rate * hyper.as_float(step)))
        mu = 1 / jnp.maximum(1.0, hyper.as_float(step) - t0)
        return updates, ASGDState(step, eta.astype(state.eta.dtype), mu.astype(state.mu.dtype), ax)

    return chain(gradient_stages(weight_decay, maximize), init, update, "asgd")
