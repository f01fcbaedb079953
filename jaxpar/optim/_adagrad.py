"""Adagrad with torch's eps and learning rate decay."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._typing import PyTree
from ._hyper import Hyper, at, check, real, start
from ._leafwise import chain, gradient_stages, leafwise


class AdagradState(NamedTuple):
    """`step`: updates so far. `sum`: of squared gradients, like the parameters."""

    step: jax.Array
    sum: PyTree


def adagrad(
    lr: Hyper = 1e-2,
    lr_decay: Any = 0,
    weight_decay: Any = 0,
    initial_accumulator_value: Any = 0,
    eps: Any = 1e-10,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Adagrad as torch does it: eps outside of the root, a learning rate that decays.

    Args:
      lr: a number, an array or a schedule.
      lr_decay: the rate of step t, from 0, is lr / (1 + t * lr_decay).
      weight_decay: added to the gradient, times the parameter.
      initial_accumulator_value: what the sum of squares begins with.
      eps: added to the root of the sum.
      maximize: ascend.

    Raises:
      ValueError: in torch's words, for values that torch refuses.

    torch counterpart: `torch.optim.Adagrad`; `optax.adagrad` has eps under the root. Source:
    torch/optim/adagrad.py.
    """
    check(
        lr=lr,
        lr_decay=lr_decay,
        weight_decay=weight_decay,
        initial_accumulator_value=initial_accumulator_value,
        eps=eps,
    )

    def init(params):
        return AdagradState(start(), optax.tree.full_like(params, initial_accumulator_value))

    def update(grads, state, params=None):
        del params
        rate = at(lr, state.step) / (1 + real(state.step) * lr_decay)

        def rule(s, g, total):
            rate, eps = s
            total = total + g * g
            return -rate * (g / (jnp.sqrt(total) + eps)), total

        updates, total = leafwise(rule, (rate, eps), grads, [state.sum])
        return updates, AdagradState(optax.safe_increment(state.step), total)

    return chain(gradient_stages(weight_decay, maximize), init, update, "adagrad")
