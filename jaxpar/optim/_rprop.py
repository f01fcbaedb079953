"""Rprop. optax 0.2.8's returns the previous step's update."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._arguments import Extended
from .._typing import PyTree
from . import _hyperparameters as hyper
from ._hyperparameters import Scalar, ScalarOrSchedule, settable
from ._leafwise import chain, gradient_stages, leafwise, zeros


class RpropState(NamedTuple):
    """`prev`, the last gradient, and `step_size` are trees like the parameters."""

    step: jax.Array
    prev: PyTree
    step_size: PyTree


@settable("lr")
def rprop(
    lr: ScalarOrSchedule = 1e-2,
    etas: tuple[Scalar, Scalar] = (0.5, 1.2),
    step_sizes: tuple[Scalar, Extended | jax.Array] = (1e-6, 50),
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Resilient backpropagation as `torch.optim.Rprop` (torch/optim/rprop.py), with torch's errors.

    Args:
      lr: the initial step size; later values have no effect, as in torch.
      etas: factors by which a step size shrinks when the gradient's sign changes, and grows when it does not.
      step_sizes: the smallest and the largest step size.
      maximize: ascend.

    >>> from jaxpar import optim
    >>> tx = optim.rprop(lr=1e-2, etas=(0.5, 1.2))
    """
    hyper.check_nonnegative(lr=lr)
    hyper.check_pair("etas", etas)
    hyper.check_pair("step_sizes", step_sizes)
    if all(map(hyper.is_number, etas)) and not 0 < etas[0] < 1 < etas[1]:
        raise ValueError(f"Invalid eta values: {etas[0]}, {etas[1]}")

    def init(params):
        first = hyper.value_at(lr, hyper.new_counter())
        return RpropState(hyper.new_counter(), zeros(params), optax.tree.full_like(params, first))

    def update(grads, state, params=None):
        def rule(s, g, before, size):
            shrink, grow, low, high = s
            # Each of XLA's CPU kernels writes one array. The expressions are ordered so that each result is
            # used as it is by the next: nothing is computed twice, and `size` and `prev` can overwrite
            # their own memory. `~(size < low)` always holds after the clip; it makes `prev` depend on `size`,
            # so that XLA finishes `size`, which reads the old `prev`, first.
            agree = g * before
            unchanged = jnp.clip(size, low, high)
            changed = jnp.clip(size * jnp.where(agree > 0, grow, shrink), low, high)
            size = jnp.where((agree > 0) | (agree < 0), changed, unchanged)
            prev = jnp.where((agree < 0) & ~(size < low), 0, g)
            # Comparisons rather than jnp.sign, since torch's sign of nan is 0.
            return jnp.where(prev > 0, -size, jnp.where(prev < 0, size, 0)), prev, size

        updates, prev, size = leafwise(rule, (*etas, *step_sizes), grads, state[1:])
        return updates, RpropState(optax.safe_increment(state.step), prev, size)

    return chain(gradient_stages(0, maximize), init, update, "rprop")
