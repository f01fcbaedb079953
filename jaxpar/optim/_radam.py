"""RAdam with eps where torch has it.

`optax.radam` adds eps to the corrected root, which differs where gradients are tiny.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._typing import PyTree
from ._hyper import Hyper, at, check, check_betas, correction, is_number, is_zero, need, real, start
from ._leafwise import chain, gradient_stages, leafwise, zeros


class RAdamState(NamedTuple):
    """`step`: updates so far. `exp_avg`, `exp_avg_sq`: like the parameters."""

    step: jax.Array
    exp_avg: PyTree
    exp_avg_sq: PyTree


def radam(
    lr: Hyper = 1e-3,
    betas: tuple[Hyper, Any] = (0.9, 0.999),
    eps: Any = 1e-8,
    weight_decay: Any = 0,
    decoupled_weight_decay: bool = False,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Rectified Adam as torch does it.

    Args:
      lr: a number, an array or a schedule; so may `betas[0]` be.
      betas: decay of the two moments.
      eps: added to the root of the second moment, before correction.
      weight_decay: added to the gradient times the parameter, unless `decoupled_weight_decay`.
      decoupled_weight_decay: shrink the parameter by lr * weight_decay instead.
      maximize: ascend.

    Raises:
      ValueError: in torch's words, for values that torch refuses.

    torch counterpart: `torch.optim.RAdam`. Source: torch/optim/radam.py.
    """
    check(lr=lr, eps=eps)
    check_betas(betas)
    check(weight_decay=weight_decay)
    decay = weight_decay if decoupled_weight_decay else 0
    before = gradient_stages(0 if decoupled_weight_decay else weight_decay, maximize)

    def init(params):
        return RAdamState(start(), zeros(params), zeros(params))

    def update(grads, state, params=None):
        if not is_zero(decay):
            need(params, "radam")
        step = optax.safe_increment(state.step)
        rate, beta1, beta2 = (at(value, state.step) for value in (lr, *betas))

        def rule(s, g, m, v, *p):
            size, adaptive, b1, b2, eps, shrink = s
            m = m + (1 - b1) * (g - m)
            v = b2 * v + (1 - b2) * g * g
            move = -size * m * jnp.where(adaptive > 0, adaptive / (jnp.sqrt(v) + eps), 1)
            return (move - shrink * p[0] if p else move), m, v

        # Zero says that the variance is not yet to be trusted, and the step is one of plain momentum.
        adaptive = rectification(beta2, step) * jnp.sqrt(correction(beta2, step))
        scalars = (rate / correction(beta1, step), adaptive, beta1, beta2, eps, rate * decay)
        others = () if is_zero(decay) else (params,)
        updates, *moments = leafwise(rule, scalars, grads, state[1:], *others)
        return updates, RAdamState(step, *moments)

    return chain(before, init, update, "radam")


def rectification(beta2: Any, step: jax.Array) -> jax.Array:
    """r_t of the paper where the length rho_t of the average is above 5, else zero."""
    longest, rho = 2 / (1 - beta2) - 1, length(beta2, step)
    square = (rho - 4) * (rho - 2) * longest / ((longest - 4) * (longest - 2) * rho)
    return jnp.where(rho > 5, jnp.sqrt(jnp.where(rho > 5, square, 1)), 0)


def length(beta2: Any, step: jax.Array) -> jax.Array:
    """rho_t = 2 / (1 - b) - 1 - 2 * t * b**t / (1 - b**t), of which float32 keeps three digits as it stands.

    With L = -log(b) and x = t * L it is c + 2 / L * (1 - x / (exp(x) - 1)), where c is a constant
    of size L. The last factor is its power series (Bernoulli numbers) while x is small.
    """
    if is_zero(beta2):
        return jnp.ones((), float)
    L = -math.log(beta2) if is_number(beta2) else -jnp.log(beta2)
    x = real(step) * L
    small = x * (1 / 2 - x * (1 / 12 - x**2 * (1 / 720 - x**2 * (1 / 30240 - x**2 * (1 / 1209600)))))
    part = jnp.where(x < 0.3, small, 1 - x / jnp.expm1(x))
    return 2 / (1 - beta2) - 1 - 2 / L + 2 / L * part
