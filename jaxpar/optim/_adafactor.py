"""Adafactor in torch's form; optax's is another algorithm by default.

Torch factors the second moment of a parameter over its last two axes. In Flax's layout these are
others: `dims` says which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from .._typing import PyTree
from ._hyper import Hyper, at, is_number, is_zero, need, real, start
from ._leafwise import chain, gradient_stages
from ._paths import name

Axes: TypeAlias = "int | tuple[int, ...]"


class AdafactorState(NamedTuple):
    """`step`: updates so far. Of a leaf with two axes or more: `row_var`, `col_var`; else `variance`.

    Each is like the parameters, with None where a leaf has none. `row_var` has size 1 along the
    columns, `col_var` along the rows.
    """

    step: jax.Array
    row_var: PyTree
    col_var: PyTree
    variance: PyTree


def adafactor(
    lr: Hyper = 1e-2,
    beta2_decay: Any = -0.8,
    eps: tuple[Any, Any] = (None, 1e-3),
    d: Any = 1.0,
    weight_decay: Any = 0.0,
    *,
    maximize: bool = False,
    dims: Callable[[str, Any], tuple[Axes, Axes]] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Adafactor as torch does it.

    Args:
      lr: the largest relative step: a number, an array or a schedule.
      beta2_decay: the second moment forgets t**beta2_decay of itself at step t.
      eps: what the variance estimate is kept above (the machine epsilon of the parameter's type if
        None), and what a parameter's magnitude is kept above.
      d: updates with a larger root mean square are scaled down to it.
      weight_decay: the parameter shrinks by lr * weight_decay.
      maximize: ascend.
      dims: `dims(path, leaf)` gives the axes of rows and of columns, each a number or a tuple; (-2, -1)
        without it. For a Flax kernel [H, W, I, O], whose torch twin is [O, I, H, W], these are (0, 1).
        Which of the two axes is called row does not matter to the result.

    Raises:
      ValueError: in torch's words, for values that torch refuses.

    torch counterpart: `torch.optim.Adafactor`. Source: torch/optim/_adafactor.py.
    """
    _check(lr, beta2_decay, eps, d, weight_decay)

    def axes(path: Any, leaf: Any) -> tuple[Axes, Axes]:
        return dims(name(path), leaf) if dims else (-2, -1)

    def init(params):
        def collapsed(side):
            def one(path, p):
                if p.ndim < 2:
                    return None
                gone = {axis % p.ndim for axis in _tuple(axes(path, p)[side])}
                return jnp.zeros([1 if i in gone else n for i, n in enumerate(p.shape)], p.dtype)

            return jax.tree_util.tree_map_with_path(one, params)

        variance = jax.tree.map(lambda p: jnp.zeros_like(p) if p.ndim < 2 else None, params)
        return AdafactorState(start(), collapsed(1), collapsed(0), variance)

    def update(grads, state, params=None):
        need(params, "adafactor")
        step = optax.safe_increment(state.step)
        rate, t = at(lr, state.step), real(step)
        scalars = (t**beta2_decay, jnp.minimum(rate, 1 / jnp.sqrt(t)), rate * weight_decay)
        structure: Any
        paths, structure = jax.tree_util.tree_flatten_with_path(grads)
        columns = [structure.flatten_up_to(tree) for tree in (*state[1:], params)]
        results = [
            _leaf(scalars, eps, d, axes(path, g), g, *rest)
            for (path, g), *rest in zip(paths, *columns, strict=True)
        ]
        move, *moments = (structure.unflatten([r[i] for r in results]) for i in range(4))
        if not is_zero(weight_decay):
            shrink = scalars[2]
            move = jax.tree.map(lambda u, p: u - jnp.asarray(shrink, u.dtype) * p, move, params)
        return move, AdafactorState(step, *moments)

    return chain(gradient_stages(0, maximize), init, update, "adafactor")


def _check(lr: Any, beta2_decay: Any, eps: Any, d: Any, weight_decay: Any) -> None:
    if is_number(lr) and not lr >= 0:
        raise ValueError(f"Learning rate should be >= 0 but is: {lr}")
    if is_number(beta2_decay) and not beta2_decay <= 0:
        raise ValueError(f"beta2_decay should be <= 0 but is: {beta2_decay}")
    for i in range(2):
        if is_number(eps[i]) and not eps[i] >= 0:
            raise ValueError(f"epsilon{i + 1} should be >= 0 but is: {eps[i]}")
    if is_number(d) and not d >= 1:
        raise ValueError(f"Clipping threshold d should be >= 1 but is: {d}")
    if is_number(weight_decay) and not weight_decay >= 0:
        raise ValueError(f"weight_decay should be >= 0 but is: {weight_decay}")


def _tuple(axes: Axes) -> tuple[int, ...]:
    return axes if isinstance(axes, tuple) else (axes,)


def _leaf(scalars, eps, d, axes, g, row, col, variance, p):
    """One leaf's update, row_var, col_var and variance."""
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
        estimate = row.astype(wide) * col / jnp.maximum(row.astype(wide).mean(rows, keepdims=True), lowest)
    else:
        variance = (variance + forget * (G * G - variance)).astype(variance.dtype)
        estimate = variance.astype(wide)
    update = G * jax.lax.rsqrt(jnp.maximum(estimate, lowest * lowest))
    alpha = jnp.maximum(eps[1], _rms(p.astype(wide))) * rho
    return -(alpha / jnp.maximum(1.0, _rms(update) / d)) * update, row, col, variance


def _rms(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.square(x).mean())
