"""Adamax."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._typing import PyTree
from ._hyper import Hyper, at, check, check_betas, correction, start
from ._leafwise import chain, gradient_stages, leafwise, zeros


class AdamaxState(NamedTuple):
    """`step`: updates so far. `exp_avg`, `exp_inf`: like the parameters."""

    step: jax.Array
    exp_avg: PyTree
    exp_inf: PyTree


def adamax(
    lr: Hyper = 2e-3,
    betas: tuple[Hyper, Any] = (0.9, 0.999),
    eps: Any = 1e-8,
    weight_decay: Any = 0,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Adamax as torch does it, with float32 noise no larger than torch's.

    Args:
      lr: a number, an array or a schedule; so may `betas[0]` be.
      betas: decay of the mean and of the largest magnitude.
      eps: added to every magnitude.
      weight_decay: added to the gradient, times the parameter.
      maximize: ascend.

    Raises:
      ValueError: in torch's words, for values that torch refuses.

    torch counterpart: `torch.optim.Adamax`. `optax.adamax` is the same with a noisier correction.
    Source: torch/optim/adamax.py.
    """
    check(lr=lr, eps=eps)
    check_betas(betas)
    check(weight_decay=weight_decay)

    def init(params):
        return AdamaxState(start(), zeros(params), zeros(params))

    def update(grads, state, params=None):
        del params
        step = optax.safe_increment(state.step)
        beta1, beta2 = (at(value, state.step) for value in betas)

        def rule(s, g, m, u):
            size, b1, b2, eps = s
            m = m + (1 - b1) * (g - m)
            u = jnp.maximum(b2 * u, jnp.abs(g) + eps)
            return -size * (m / u), m, u

        size = at(lr, state.step) / correction(beta1, step)
        updates, *moments = leafwise(rule, (size, beta1, beta2, eps), grads, state[1:])
        return updates, AdamaxState(step, *moments)

    return chain(gradient_stages(weight_decay, maximize), init, update, "adamax")
