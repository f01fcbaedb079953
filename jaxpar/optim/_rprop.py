"""Rprop. optax 0.2.8's returns the update of the step before."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._typing import PyTree
from ._hyper import Hyper, at, check, is_number, start
from ._leafwise import chain, gradient_stages, leafwise, zeros


class RpropState(NamedTuple):
    """`step`: updates so far. `prev`: the last gradient, `step_size`: both like the parameters."""

    step: jax.Array
    prev: PyTree
    step_size: PyTree


def rprop(
    lr: Hyper = 1e-2,
    etas: tuple[Any, Any] = (0.5, 1.2),
    step_sizes: tuple[Any, Any] = (1e-6, 50),
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Resilient backpropagation as torch does it.

    Args:
      lr: the first size of every step; later values have no effect, as in torch.
      etas: by how much a step size shrinks when the gradient's sign changes, and grows when not.
      step_sizes: the smallest and the largest.
      maximize: ascend.

    Raises:
      ValueError: in torch's words, for values that torch refuses.

    torch counterpart: `torch.optim.Rprop`. Source: torch/optim/rprop.py.
    """
    check(lr=lr)
    if all(map(is_number, etas)) and not 0 < etas[0] < 1 < etas[1]:
        raise ValueError(f"Invalid eta values: {etas[0]}, {etas[1]}")

    def init(params):
        first = at(lr, start())
        return RpropState(start(), zeros(params), optax.tree.full_like(params, first))

    def update(grads, state, params=None):
        del params

        def rule(s, g, before, size):
            shrink, grow, low, high = s
            # XLA's kernels for CPUs write one array each. Every result is used by the next one as it is,
            # and `prev` asks a question of `size` whose answer is known: so nothing is computed twice,
            # and both overwrite their own memory, the new `size` before the old `prev` is gone.
            agree = g * before
            kept = jnp.clip(size, low, high)
            changed = jnp.clip(size * jnp.where(agree > 0, grow, shrink), low, high)
            size = jnp.where((agree > 0) | (agree < 0), changed, kept)
            prev = jnp.where((agree < 0) & ~(size < low), 0, g)
            # Comparisons, and not jnp.sign, since torch's sign of nan is 0.
            return jnp.where(prev > 0, -size, jnp.where(prev < 0, size, 0)), prev, size

        updates, prev, size = leafwise(rule, (*etas, *step_sizes), grads, state[1:])
        return updates, RpropState(optax.safe_increment(state.step), prev, size)

    return chain(gradient_stages(0, maximize), init, update, "rprop")
