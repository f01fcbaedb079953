"""Adam and AdamW.

`optax.adam` is the same algebra, but takes 1 - beta**t as it stands; in float32 that makes it many times
as noisy as torch, which computes it in float64 (docs/optim.md has numbers). `optax.amsgrad` maximises
the corrected second moment, torch the raw one: another algorithm.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._typing import PyTree
from ._hyper import Hyper, at, check, check_betas, correction, is_zero, need, start
from ._leafwise import chain, gradient_stages, leafwise, zeros


class AdamState(NamedTuple):
    """`step`: updates so far. The others: like the parameters; the maximum is None without amsgrad."""

    step: jax.Array
    exp_avg: PyTree
    exp_avg_sq: PyTree
    max_exp_avg_sq: PyTree | None


def adam(
    lr: Hyper = 1e-3,
    betas: tuple[Hyper, Any] = (0.9, 0.999),
    eps: Any = 1e-8,
    weight_decay: Any = 0,
    amsgrad: bool = False,
    *,
    maximize: bool = False,
    decoupled_weight_decay: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Adam as torch does it, with float32 noise no larger than torch's.

    Args:
      lr: a number, an array or a schedule; so may `betas[0]` be.
      betas: decay of the two moments.
      eps: added to the root of the corrected second moment.
      weight_decay: added to the gradient times the parameter, unless `decoupled_weight_decay`.
      amsgrad: divide by the largest second moment so far, before correction.
      maximize: ascend.
      decoupled_weight_decay: AdamW: shrink the parameter by lr * weight_decay instead.

    Raises:
      ValueError: in torch's words, for values that torch refuses.

    torch counterpart: `torch.optim.Adam`. Source: torch/optim/adam.py, `_single_tensor_adam`.
    """
    check(lr=lr, eps=eps)
    check_betas(betas)
    check(weight_decay=weight_decay)
    decay = weight_decay if decoupled_weight_decay else 0
    before = gradient_stages(0 if decoupled_weight_decay else weight_decay, maximize)

    def init(params):
        return AdamState(start(), zeros(params), zeros(params), zeros(params) if amsgrad else None)

    def update(grads, state, params=None):
        if not is_zero(decay):
            need(params, "adamw")
        step = optax.safe_increment(state.step)
        rate, beta1, beta2 = (at(value, state.step) for value in (lr, *betas))

        def rule(s, g, m, v, *rest):
            size, root, b1, b2, eps, shrink = s
            m = m + (1 - b1) * (g - m)
            v = b2 * v + (1 - b2) * g * g
            top = [jnp.maximum(rest[0], v)] if amsgrad else []
            move = -size * (m / (jnp.sqrt([v, *top][-1]) / root + eps))
            return (move if is_zero(decay) else move - shrink * rest[-1]), m, v, *top

        size, root = rate / correction(beta1, step), jnp.sqrt(correction(beta2, step))
        scalars = (size, root, beta1, beta2, eps, rate * decay)
        kept = [moment for moment in state[1:] if moment is not None]
        others = () if is_zero(decay) else (params,)
        updates, *moments = leafwise(rule, scalars, grads, kept, *others)
        return updates, AdamState(step, *moments, *([] if amsgrad else [None]))

    return chain(before, init, update, "adam")


def adamw(
    lr: Hyper = 1e-3,
    betas: tuple[Hyper, Any] = (0.9, 0.999),
    eps: Any = 1e-8,
    weight_decay: Any = 1e-2,
    amsgrad: bool = False,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Adam with decoupled weight decay: `adam(..., decoupled_weight_decay=True)`.

    The decay is torch's 1e-2 unless given (optax.adamw: 1e-4) and is multiplied by the learning rate.

    torch counterpart: `torch.optim.AdamW`. Source: torch/optim/adamw.py.
    """
    return adam(lr, betas, eps, weight_decay, amsgrad, maximize=maximize, decoupled_weight_decay=True)
