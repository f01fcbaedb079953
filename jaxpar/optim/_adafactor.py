"""Adafactor in torch's form; optax's default is a different algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from .._arguments import Extended
from .._typing import PyTree
from . import _hyperparameters as hyper
from ._hyperparameters import Scalar, ScalarOrSchedule, settable
from ._leafwise import KeyPath, chain, gradient_stages, leaf_path

Axes: TypeAlias = "int | tuple[int, ...]"


class AdafactorState(NamedTuple):
    """Trees like the parameters, of None for unused leaves: `variance` for vectors and scalars, else the
    other two, of size 1 along the columns (`row_var`) and along the rows (`col_var`).
    """

    step: jax.Array
    row_var: PyTree
    col_var: PyTree
    variance: PyTree


@settable("lr")
def adafactor(
    lr: ScalarOrSchedule = 1e-2,
    beta2_decay: Scalar = -0.8,
    eps: tuple[Scalar | None, Scalar] = (None, 1e-3),
    d: Extended | jax.Array = 1.0,
    weight_decay: Scalar = 0.0,
    *,
    maximize: bool = False,
    dims: Callable[[str, jax.Array], tuple[Axes, Axes]] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Adafactor as `torch.optim.Adafactor` (torch/optim/_adafactor.py), with torch's errors.

    Args:
      lr: the largest relative step: a number, an array or a schedule.
      beta2_decay: at step t the second moment forgets t**beta2_decay of itself.
      eps: lower bounds of the variance estimate (None: the machine epsilon of the parameter's type) and of a
        parameter's magnitude.
      d: updates with a larger root mean square are scaled down to it.
      weight_decay: decoupled, times the rate. maximize: ascend.
      dims: `dims(path, leaf)` gives the axes of rows and of columns, in any order, each a number or a tuple;
        (-2, -1) without it. For a Flax kernel [H, W, I, O], [O, I, H, W] in torch, these are (0, 1).

    >>> from jaxpar import optim
    >>> tx = optim.adafactor(lr=1e-2, d=1.0)
    """
    if not isinstance(eps, Sequence) or isinstance(eps, str) or len(eps) != 2:
        raise TypeError(f"eps must be a pair, of None or a number and a number, not {eps!r}.")
    bounds: dict[str, Any] = {f"eps[{i}]": bound for i, bound in enumerate(eps) if bound is not None or i}
    hyper.check_numbers(lr=lr, beta2_decay=beta2_decay, d=d, weight_decay=weight_decay, **bounds)
    names = ("Learning rate", "epsilon1", "epsilon2", "weight_decay", "Clipping threshold d")
    for name, value, least in zip(names, (lr, *eps, weight_decay, d), (0, 0, 0, 0, 1), strict=True):
        hyper.check_least(name, value, least)
    if hyper.is_number(beta2_decay) and not beta2_decay <= 0:
        raise ValueError(f"beta2_decay should be <= 0 but is: {beta2_decay}")

    def axes(path: KeyPath, leaf: jax.Array) -> tuple[Axes, Axes]:
        return dims(leaf_path(path), leaf) if dims else (-2, -1)

    def init(params):
        def collapsed(side):
            def one(path, p):
                if p.ndim < 2:
                    return None
                gone = {axis % p.ndim for axis in _tuple(axes(path, p)[side])}
                return jnp.zeros([1 if i in gone else n for i, n in enumerate(p.shape)], p.dtype)

            return jax.tree_util.tree_map_with_path(one, params)

        variance = jax.tree.map(lambda p: jnp.zeros_like(p) if p.ndim < 2 else None, params)
        return AdafactorState(hyper.new_counter(), collapsed(1), collapsed(0), variance)

    def update(grads, state, params=None):
        hyper.require_params(params, "adafactor")
        step = optax.safe_increment(state.step)
        rate, t = hyper.value_at(lr, state.step), hyper.as_float(step)
        scalars = (t**beta2_decay, jnp.minimum(rate, 1 / jnp.sqrt(t)), rate * weight_decay)
        structure: Any
        paths, structure = jax.tree_util.tree_flatten_with_path(grads)
        columns = [structure.flatten_up_to(tree) for tree in (*state[1:], params)]
        results = [
            _leaf(scalars, eps, d, axes(path, g), g, *leaves)
            for (path, g), *leaves in zip(paths, *columns, strict=True)
        ]
        move, *moments = (structure.unflatten([r[i] for r in results]) for i in range(4))
        if not hyper.is_zero(weight_decay):
            shrink = scalars[2]
            # The decay is lr itself, not the relative step, and the update above was measured on the
            # undecayed parameter: torch multiplies after computing alpha.
            move = jax.tree.map(lambda u, p: u - jnp.asarray(shrink, u.dtype) * p, move, params)
        return move, AdafactorState(step, *moments)

    return chain(gradient_stages(0, maximize), init, update, "adafactor")


def _tuple(axes: Axes) -> tuple[int, ...]:
    return axes if isinstance(axes, tuple) else (axes,)


def _leaf(scalars, eps, d, axes, g, row, col, variance, p):
    """One leaf's update, row_var, col_var and variance."""
    # Half precision is computed in float32, as in torch's kernels; the moments are stored in their own types.
    wide = jnp.promote_types(g.dtype, jnp.float32)
    lowest = float(jnp.finfo(p.dtype).eps) if eps[0] is None else eps[0]
    forget, rho, _ = (jnp.asarray(s, wide) for s in scalars)
    G = g.astype(wide)
    if g.ndim > 1:
        rows, cols = map(_tuple, axes)
        row, col = (
            (old + forget * (jnp.square(G).mean(gone, keepdims=True) - old)).astype(old.dtype)
            for old, gone in ((row, cols), (col, rows))
        )
        # torch computes row_var @ col_var, which needs the last two axes. A broadcast product takes any axes.
        estimate = row.astype(wide) * col / jnp.maximum(row.astype(wide).mean(rows, keepdims=True), lowest)
    else:
        variance = (variance + forget * (G * G - variance)).astype(variance.dtype)
        estimate = variance.astype(wide)
    # The first eps bounds the root of the estimate, hence its square under the root.
    update = G * jax.lax.rsqrt(jnp.maximum(estimate, lowest * lowest))
    alpha = jnp.maximum(eps[1], _rms(p.astype(wide))) * rho
    return -(alpha / jnp.maximum(1.0, _rms(update) / d)) * update, row, col, variance


def _rms(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.square(x).mean())
