"""L-BFGS as torch has it: up to `max_iter` iterations in one update.

Torch's `step(closure)` evaluates the loss as often as it needs to. Here `update` gets the loss as a
function, and the whole step, line search included, is one loop of the compiled program.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from ._hyper import Hyper, at, check, need, start
from ._leafwise import refuse_complex
from ._strong_wolfe import Point, strong_wolfe


class LBFGSState(NamedTuple):
    """Everything flat. `old_dirs`, `old_stps` [history_size, n] and `ro` [history_size] are a ring, of
    which `pairs` were written in all. `step`: updates, `n_iter`: iterations, `func_evals`: evaluations.
    """

    step: jax.Array
    n_iter: jax.Array
    func_evals: jax.Array
    pairs: jax.Array
    d: jax.Array
    t: jax.Array
    old_dirs: jax.Array
    old_stps: jax.Array
    ro: jax.Array
    H_diag: jax.Array
    prev_flat_grad: jax.Array


class _Iteration(NamedTuple):
    """What changes from one iteration to the next."""

    i: jax.Array
    stop: jax.Array
    evaluations: jax.Array
    x: jax.Array
    loss: jax.Array
    gradient: jax.Array
    state: LBFGSState


def lbfgs(
    lr: Hyper = 1,
    max_iter: int = 20,
    max_eval: int | None = None,
    tolerance_grad: float = 1e-7,
    tolerance_change: float = 1e-9,
    history_size: int = 100,
    line_search_fn: str | None = None,
) -> optax.GradientTransformationExtraArgs:
    """L-BFGS as torch does it: `tx.update(grads, state, params, value=loss, value_fn=loss_fn)`.

    Args:
      lr: a number, an array or a schedule.
      max_iter, max_eval: iterations and evaluations in one update at most; 5/4 max_iter for the latter.
      tolerance_grad: an update ends when no element of the gradient is larger.
      tolerance_change: and when neither a parameter nor the loss changes by more.
      history_size: how many pairs of changes are kept, n numbers each, twice.
      line_search_fn: "strong_wolfe" or None.

    `value_fn(params)` is the loss; `grads` and `value` are its gradient and value at `params`, of which
    `value` is computed if left out. Nothing may come before or after it in a chain: the gradients of
    later iterations are those of `value_fn`.

    Raises:
      ValueError: a negative rate; at `update`, no `value_fn`. RuntimeError: another line search.
      TypeError: at `init`, parameters of different or complex types.

    torch counterpart: `torch.optim.LBFGS`. `optax.lbfgs` takes one step for each update, with another
    line search. Source: torch/optim/lbfgs.py.
    """
    check(lr=lr)
    if line_search_fn not in (None, "strong_wolfe"):
        raise RuntimeError("only 'strong_wolfe' is supported")
    most = max_iter * 5 // 4 if max_eval is None else max_eval

    def init(params):
        refuse_complex(params, "lbfgs")
        kinds = {leaf.dtype.name for leaf in jax.tree.leaves(params)}
        if len(kinds) > 1:
            raise TypeError(f"lbfgs: all parameters must have the same type, but have {sorted(kinds)}.")
        flat = jnp.zeros_like(ravel_pytree(params)[0])
        history = jnp.zeros((history_size, flat.size), flat.dtype)
        one = jnp.ones((), flat.dtype)
        zero = start()
        return LBFGSState(
            zero, zero, zero, zero, flat, one, history, history, history[:, 0], one, jnp.copy(flat)
        )

    def update(grads, state, params=None, *, value=None, value_fn=None, **extra):
        del extra
        need(params, "lbfgs")
        if value_fn is None:
            raise ValueError("lbfgs: pass the loss: tx.update(grads, state, params, value_fn=loss_fn).")
        x, unravel = ravel_pytree(params)
        gradient = ravel_pytree(grads)[0].astype(x.dtype)
        rate = jnp.asarray(at(lr, state.step), x.dtype)

        def evaluate(x):
            loss, gradient = jax.value_and_grad(value_fn)(unravel(x))
            return jnp.asarray(loss, x.dtype), ravel_pytree(gradient)[0]

        def search(x, d, t, loss, gradient, slope, left):
            def point(t):
                f, g = evaluate(x + t * d)
                return Point(t, f, g, g @ d)

            zero = Point(jnp.zeros_like(t), loss, gradient, slope)
            found, evaluations = strong_wolfe(point, zero, t, jnp.abs(d).max(), tolerance_change, left)
            return found.t, found.f, found.g, evaluations

        def iterate(now: _Iteration) -> _Iteration:
            state = _direction(now.state, now.gradient)
            d, gradient = state.d, now.gradient
            first = jnp.minimum(1.0, 1.0 / jnp.abs(gradient).sum()) * rate
            t = jnp.where(state.n_iter == 1, first, rate)
            slope = gradient @ d
            flat = slope > -tolerance_change

            def advance():
                if line_search_fn is not None:
                    return search(now.x, d, t, now.loss, gradient, slope, most - now.evaluations)
                ahead = jax.lax.cond(
                    now.i + 1 < max_iter,
                    lambda: (*evaluate(now.x + t * d), jnp.ones((), int)),
                    lambda: (now.loss, gradient, jnp.zeros((), int)),
                )
                return t, *ahead

            def stay():
                return t, now.loss, gradient, jnp.zeros((), int)

            t, loss, new, evaluations = jax.lax.cond(flat, stay, advance)
            total = now.evaluations + evaluations
            stop = (
                flat
                | (now.i + 1 >= max_iter)
                | (total >= most)
                | (jnp.abs(new).max() <= tolerance_grad)
                | (jnp.abs(d * t).max() <= tolerance_change)
                | (jnp.abs(loss - now.loss) < tolerance_change)
            )
            x = jnp.where(flat, now.x, now.x + t * d)
            state = state._replace(t=t, func_evals=state.func_evals + evaluations)
            return _Iteration(now.i + 1, stop, total, x, loss, new, state)

        loss = jnp.asarray(value_fn(params) if value is None else value, x.dtype)
        state = state._replace(step=optax.safe_increment(state.step), func_evals=state.func_evals + 1)
        optimal = jnp.abs(gradient).max() <= tolerance_grad
        one = jnp.ones((), int)
        begin = _Iteration(jnp.zeros((), int), optimal, one, x, loss, gradient, state)
        end = jax.lax.while_loop(lambda now: ~now.stop, iterate, begin)
        return unravel(end.x - x), end.state

    return optax.GradientTransformationExtraArgs(init, update)


def _direction(state: LBFGSState, gradient: jax.Array) -> LBFGSState:
    """The next direction, after the last step has entered the history."""
    first = state.n_iter == 0
    size = state.ro.shape[0]
    y, s = gradient - state.prev_flat_grad, state.d * state.t
    curvature = y @ s
    keep = ~first & (curvature > 1e-10)
    at_end = jnp.where(keep, state.pairs % size, size)  # a place outside of the ring: nothing is written
    old_dirs = state.old_dirs.at[at_end].set(y, mode="drop")
    old_stps = state.old_stps.at[at_end].set(s, mode="drop")
    ro = state.ro.at[at_end].set(1.0 / curvature, mode="drop")
    H_diag = jnp.where(keep, curvature / (y @ y), state.H_diag)
    pairs = state.pairs + keep
    n = jnp.minimum(pairs, size)

    def backward(k, carry):
        q, al = carry
        i = (pairs - 1 - k) % size
        a = (old_stps[i] @ q) * ro[i]
        return q - a * old_dirs[i], al.at[i].set(a)

    q, al = jax.lax.fori_loop(0, n, backward, (-gradient, jnp.zeros_like(ro)))

    def forward(k, r):
        i = (pairs - n + k) % size
        return r + old_stps[i] * (al[i] - (old_dirs[i] @ r) * ro[i])

    d = jax.lax.fori_loop(0, n, forward, q * H_diag)
    return state._replace(
        n_iter=state.n_iter + 1,
        pairs=pairs,
        d=jnp.where(first, -gradient, d),
        old_dirs=old_dirs,
        old_stps=old_stps,
        ro=ro,
        H_diag=H_diag,
        prev_flat_grad=gradient,
    )
