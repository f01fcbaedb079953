"""Muon: momentum whose update is a matrix with all singular values near one.

torch runs the Newton-Schulz iteration in bfloat16, accumulating products in float32 and rounding each sum
once. So does this module, but the order of summation is up to each library: a sum close to the boundary
between two bfloat16 numbers may round either way, and later iterations amplify the difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import optax

from .._arguments import Count, NonNegative
from .._typing import PyTree
from . import _hyperparameters as hyper
from ._hyperparameters import Scalar, ScalarOrSchedule, settable
from ._leafwise import KeyPath, chain, leaf_path, leafwise, lerp, zeros
from ._sgd import MomentumState

Axes: TypeAlias = tuple[int, int]

# Keller Jordan's coefficients, as in torch. They maximise the polynomial's slope at zero, so that small
# singular values grow fast; the iteration does not converge to 1 but leaves values between about 0.5 and 1.5.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


@settable("lr", "momentum")
def muon(
    lr: ScalarOrSchedule = 1e-3,
    weight_decay: Scalar = 0.1,
    momentum: ScalarOrSchedule = 0.95,
    nesterov: bool = True,
    ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
    eps: NonNegative = 1e-7,
    ns_steps: Count = 5,
    adjust_lr_fn: str | None = None,
    *,
    dims: Callable[[str, jax.Array], Axes] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Muon as torch does it, for matrices; other parameters go to a different optimizer.

    ```python
    tx = optax.partition(
        {"muon": optim.muon(lr=0.02), "adamw": optim.adamw(lr=3e-4)},
        lambda params: jax.tree.map(lambda p: "muon" if p.ndim == 2 else "adamw", params),
    )
    ```

    Args:
      lr, momentum: a number, an array or a schedule.
      weight_decay: decoupled, times the rate.
      nesterov: orthogonalise gradient and momentum together, instead of the momentum.
      ns_coefficients, ns_steps: the Newton-Schulz polynomial a x + b x^3 + c x^5, and how often.
      eps: the least norm by which the matrix is divided.
      adjust_lr_fn: what the rate is multiplied by. "original" or None: sqrt(max(1, A / B)), for a torch
        parameter [A, B]; "match_rms_adamw": 0.2 * sqrt(max(A, B)).
      dims: `dims(path, leaf)` gives the axes that are torch's A and B: (1, 0), the default, for a Flax kernel
        [in, out]; (0, 1) for a matrix in torch's layout.

    Raises: ValueError: with torch's message, for values that torch refuses; at `init`, a parameter that is
      not a matrix. TypeError: a complex parameter.

    torch counterpart: `torch.optim.Muon`. `optax.contrib.muon` iterates in the parameter's type.
    Source: torch/optim/_muon.py.
    """
    hyper.check_numbers(lr=lr, momentum=momentum, weight_decay=weight_decay)
    for name, value in (("Learning rate", lr), ("momentum", momentum), ("weight decay", weight_decay)):
        hyper.check_least(name, value)
    if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
        raise ValueError(f"Adjust learning rate function {adjust_lr_fn} is not supported")
    if ns_steps >= 100:
        raise ValueError("Number of steps must be less than 100 for computational efficiency")
    if len(ns_coefficients) != 3:
        raise ValueError("Coefficients must be a tuple of exactly 3 values")

    def turned(path: KeyPath, leaf: jax.Array) -> bool:
        return dims is None or dims(leaf_path(path), leaf)[0] % 2 == 1

    def init(params):
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            if leaf.ndim != 2:
                raise ValueError(
                    f"Muon only supports 2D parameters whereas we found a parameter with size: {leaf.shape}, "
                    f"{leaf_path(path) or 'the parameter'}. Give it to another optimizer, by optax.partition."
                )
        return MomentumState(hyper.new_counter(), zeros(params))

    def update(grads, state, params=None):
        hyper.require_params(params, "muon")
        turns = jax.tree_util.tree_map_with_path(turned, params)

        def turn(tree: PyTree) -> PyTree:
            """Transpose to torch's layout or back."""
            return jax.tree.map(lambda turned, x: x.T if turned else x, turns, tree)

        def rule(s, g, buffer, p):
            rate, mu, decay = s
            buffer = lerp(buffer, g, 1 - mu)
            matrix = lerp(g, buffer, mu) if nesterov else buffer
            step = orthogonal(matrix, ns_coefficients, ns_steps, eps).astype(g.dtype)
            return -rate * _adjustment(adjust_lr_fn, g.shape) * step - decay * p, buffer

        rate = hyper.value_at(lr, state.step)
        scalars = rate, hyper.value_at(momentum, state.step), rate * weight_decay
        updates, buffer = leafwise(rule, scalars, turn(grads), [turn(state.momentum_buffer)], turn(params))
        return turn(updates), MomentumState(optax.safe_increment(state.step), turn(buffer))

    return chain([], init, update, "muon")


def orthogonal(
    matrix: jax.Array, coefficients: Sequence[float], steps: int = 5, eps: NonNegative = 1e-7
) -> jax.Array:
    """Return [A, B] in float32 with bfloat16 values: the same singular vectors, singular values near one."""
    # The Gram matrix of the shorter side is cheaper, and torch transposes likewise.
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal(matrix.T, coefficients, steps, eps).T
    a, b, c = coefficients
    x = _rounded(matrix)
    norm = _rounded(jnp.sqrt(jnp.sum(x * x)))
    # In torch the norm is a bfloat16 scalar, and clamping keeps that type, so eps is rounded as well.
    x = _rounded(x / jnp.maximum(norm, _rounded(jnp.float32(eps))))
    for _ in range(steps):
        gram = _rounded(_product(x, x.T))
        polynomial = _rounded(b * gram + c * _product(gram, gram))
        x = _rounded(a * x + _product(polynomial, x))
    return x


def _rounded(x: jax.Array) -> jax.Array:
    """Round to bfloat16 values as torch does. XLA may elide a pair of casts, but not `reduce_precision`."""
    return jax.lax.reduce_precision(x.astype(jnp.float32), exponent_bits=8, mantissa_bits=7)


def _product(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x.astype(jnp.bfloat16), y.astype(jnp.bfloat16), preferred_element_type=jnp.float32)


def _adjustment(adjust_lr_fn: str | None, shape: tuple[int, ...]) -> float:
    A, B = shape
    return 0.2 * math.sqrt(max(A, B)) if adjust_lr_fn == "match_rms_adamw" else math.sqrt(max(1, A / B))
