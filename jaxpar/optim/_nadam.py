"""NAdam with torch's momentum schedule, which optax.nadam does not have."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._typing import PyTree
from ._hyper import Hyper, at, check, check_betas, correction, expm1, is_zero, need, real, start
from ._leafwise import chain, gradient_stages, leafwise, zeros


class NAdamState(NamedTuple):
    """`step`: updates so far. `mu_product`: of the momenta so far. The others: like the parameters."""

    step: jax.Array
    mu_product: jax.Array
    exp_avg: PyTree
    exp_avg_sq: PyTree


def nadam(
    lr: Hyper = 2e-3,
    betas: tuple[Hyper, Any] = (0.9, 0.999),
    eps: Any = 1e-8,
    weight_decay: Any = 0,
    momentum_decay: Any = 4e-3,
    decoupled_weight_decay: bool = False,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """NAdam as torch does it.

    Args:
      lr: a number, an array or a schedule; so may `betas[0]` be.
      betas: decay of the two moments.
      eps: added to the root of the corrected second moment.
      weight_decay: added to the gradient times the parameter, unless `decoupled_weight_decay`.
      momentum_decay: psi in mu_t = beta1 * (1 - 0.96**(t * psi) / 2).
      decoupled_weight_decay: shrink the parameter by lr * weight_decay instead.
      maximize: ascend.

    Raises:
      ValueError: in torch's words, for values that torch refuses.

    torch counterpart: `torch.optim.NAdam`. There `mu_product` is float32 unless the default type is
    float64; here it is float64 under x64. Source: torch/optim/nadam.py.
    """
    check(lr=lr, eps=eps)
    check_betas(betas)
    check(weight_decay=weight_decay, momentum_decay=momentum_decay)
    decay = weight_decay if decoupled_weight_decay else 0
    before = gradient_stages(0 if decoupled_weight_decay else weight_decay, maximize)

    def init(params):
        return NAdamState(start(), jnp.ones((), float), zeros(params), zeros(params))

    def update(grads, state, params=None):
        if not is_zero(decay):
            need(params, "nadam")
        step = optax.safe_increment(state.step)
        rate, beta1, beta2 = (at(value, state.step) for value in (lr, *betas))
        mu, mu_next = (
            0.5 * beta1 * (1 - expm1(t * (momentum_decay * math.log(0.96))))
            for t in (real(step), real(step) + 1)
        )
        product = (state.mu_product * mu).astype(state.mu_product.dtype)
        now, coming = rate * (1 - mu) / (1 - product), rate * mu_next / (1 - product * mu_next)

        def rule(s, g, m, v, *p):
            now, coming, c2, b1, b2, eps, shrink = s
            m = m + (1 - b1) * (g - m)
            v = b2 * v + (1 - b2) * g * g
            # Torch divides twice, once for each term; division is what costs here.
            move = -(now * g + coming * m) / (jnp.sqrt(v / c2) + eps)
            return (move - shrink * p[0] if p else move), m, v

        scalars = (now, coming, correction(beta2, step), beta1, beta2, eps, rate * decay)
        others = () if is_zero(decay) else (params,)
        updates, *moments = leafwise(rule, scalars, grads, (state.exp_avg, state.exp_avg_sq), *others)
        return updates, NAdamState(step, product, *moments)

    return chain(before, init, update, "nadam")
