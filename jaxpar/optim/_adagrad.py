"""Adagrad with torch's eps and learning rate decay."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._typing import PyTree
from ._hyperparameters import Scalar, ScalarOrSchedule, as_float, check_nonnegative, new_counter, value_at
from ._leafwise import chain, gradient_stages, leafwise
from ._settable import settable


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
