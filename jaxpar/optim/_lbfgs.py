"""L-BFGS: `update` gets the loss as a function, and the whole step is one loop of the compiled program."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from .._arguments import Count, Positive
from . import _hyperparameters as hyper
from ._hyperparameters import ScalarOrSchedule, settable
from ._leafwise import refuse_complex

Evaluate: TypeAlias = Callable[[jax.Array], tuple[jax.Array, jax.Array]]
"""Maps a flat vector of parameters to the loss and its gradient."""


class LBFGSState(NamedTuple):
    """Flat vectors and counters, under torch's names; `step` counts updates, `n_iter` iterations.

    `old_dirs`, `old_stps` [history_size, n] and `ro` [history_size] are ring buffers, since a list's length
    must be known to compile; `pairs` counts all that were written.
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
    i: jax.Array
    stop: jax.Array
    evaluations: jax.Array
    x: jax.Array
    loss: jax.Array
    gradient: jax.Array
    state: LBFGSState


@dataclasses.dataclass(frozen=True)
class _Options:
    max_iter: Count
    max_eval: int
    tolerance_grad: float
    tolerance_change: float
    line_search: bool


@settable("lr")
def lbfgs(
    lr: ScalarOrSchedule = 1,
    max_iter: Count = 20,
    max_eval: Count | None = None,
    tolerance_grad: float = 1e-7,
    tolerance_change: float = 1e-9,
    history_size: Positive = 100,
    line_search_fn: str | None = None,
    *,
    maximize: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """L-BFGS as torch does it.

    Args:
      lr: a number, an array or a schedule.
      max_iter, max_eval: the most iterations and evaluations in one update; by default max_eval is 5/4
        max_iter.
      tolerance_grad: an update ends when no element of the gradient is larger,
      tolerance_change: or when neither a parameter nor the loss changes by more.
      history_size: how many pairs of changes are kept; each is two vectors of n numbers.
      line_search_fn: "strong_wolfe" or None.
      maximize: ascend; torch has it from 2.15.

    `update` needs `value_fn=`, a function of the parameters that returns the loss, and takes `value=`, the
    loss that belongs to `grads`. lbfgs cannot be part of a chain: later iterations call `value_fn`.

    Raises: ValueError: a negative rate; at `update`, no `value_fn`. RuntimeError: an unknown line search.
      TypeError: at `init`, parameters of different or complex types.

    torch counterpart: `torch.optim.LBFGS`. `optax.lbfgs` takes one step for each update, with a different
    line search. Source: torch/optim/lbfgs.py.

    >>> from jaxpar import optim
    >>> tx = optim.lbfgs(lr=1, max_iter=10, line_search_fn="strong_wolfe")
    """
    hyper.check_nonnegative(lr=lr)
    hyper.check_numbers(tolerance_grad=tolerance_grad, tolerance_change=tolerance_change)
    if line_search_fn not in (None, "strong_wolfe"):
        raise RuntimeError("only 'strong_wolfe' is supported")
    max_eval = max_iter * 5 // 4 if max_eval is None else max_eval
    sign = -1 if maximize else 1
    options = _Options(max_iter, max_eval, tolerance_grad, tolerance_change, line_search_fn is not None)

    def init(params):
        refuse_complex(params, "lbfgs")
        # History and direction are flat vectors over all parameters, and a vector has one type.
        kinds = {leaf.dtype.name for leaf in jax.tree.leaves(params)}
        if len(kinds) > 1:
            raise TypeError(f"lbfgs: all parameters must have the same type, but have {sorted(kinds)}.")
        x = ravel_pytree(params)[0]

        def zeros(*shape):
            return jnp.zeros(shape, x.dtype)

        return LBFGSState(
            step=hyper.new_counter(),
            n_iter=hyper.new_counter(),
            func_evals=hyper.new_counter(),
            pairs=hyper.new_counter(),
            d=zeros(x.size),
            t=zeros(),
            old_dirs=zeros(history_size, x.size),
            old_stps=zeros(history_size, x.size),
            ro=zeros(history_size),
            H_diag=jnp.ones((), x.dtype),
            prev_flat_grad=zeros(x.size),
        )

    def update(grads, state, params=None, *, value=None, value_fn=None, **extra):
        hyper.require_params(params, "lbfgs")
        if value_fn is None:
            raise ValueError("lbfgs: pass the loss: tx.update(grads, state, params, value_fn=loss_fn).")
        x, unravel = ravel_pytree(params)
        gradient = sign * ravel_pytree(grads)[0].astype(x.dtype)
        rate = jnp.asarray(hyper.value_at(lr, state.step), x.dtype)

        def evaluate(x):
            loss, gradient = jax.value_and_grad(value_fn)(unravel(x))
            return sign * jnp.asarray(loss, x.dtype), sign * ravel_pytree(gradient)[0]

        # The caller usually has the loss already; without it, evaluate once more.
        loss = sign * jnp.asarray(value_fn(params) if value is None else value, x.dtype)
        state = state._replace(step=optax.safe_increment(state.step), func_evals=state.func_evals + 1)
        # Torch returns before its loop if the first gradient is small enough.
        optimal = jnp.abs(gradient).max() <= tolerance_grad
        begin = _Iteration(jnp.zeros((), int), optimal, jnp.ones((), int), x, loss, gradient, state)
        iterate = functools.partial(_iterate, evaluate=evaluate, rate=rate, options=options)
        end = jax.lax.while_loop(lambda now: ~now.stop, iterate, begin)
        # optax adds the difference to the parameters, which can end one rounding away from `end.x`.
        return unravel(end.x - x), end.state

    return optax.GradientTransformationExtraArgs(init, update)


def _iterate(now: _Iteration, *, evaluate: Evaluate, rate: jax.Array, options: _Options) -> _Iteration:
    state = _direction(now.state, now.gradient)
    d = state.d
    # The very first direction is the gradient itself, which has no natural length.
    first = jnp.minimum(1.0, 1.0 / jnp.abs(now.gradient).sum()) * rate
    t = jnp.where(state.n_iter == 1, first, rate)
    slope = now.gradient @ d
    # Torch breaks off here, before the step. A loop cannot: it takes a step of no effect, which is the last.
    flat = slope > -options.tolerance_change

    def stay():
        return t, now.loss, now.gradient, jnp.zeros((), int)

    t, loss, gradient, evaluations = jax.lax.cond(
        flat, stay, lambda: _advance(now, d, t, slope, evaluate, options)
    )
    total = now.evaluations + evaluations
    stop = (
        flat
        | (now.i + 1 >= options.max_iter)
        | (total >= options.max_eval)
        | (jnp.abs(gradient).max() <= options.tolerance_grad)
        | (jnp.abs(d * t).max() <= options.tolerance_change)
        | (jnp.abs(loss - now.loss) < options.tolerance_change)
    )
    x = jnp.where(flat, now.x, now.x + t * d)
    state = state._replace(t=t, func_evals=state.func_evals + evaluations)
    return _Iteration(now.i + 1, stop, total, x, loss, gradient, state)


def _advance(
    now: _Iteration, d: jax.Array, t: jax.Array, slope: jax.Array, evaluate: Evaluate, options: _Options
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return the step's length, the new loss and gradient, and the number of evaluations."""
    if not options.line_search:
        # As in torch, the last iteration does not evaluate the loss: its result would not be used.
        ahead = jax.lax.cond(
            now.i + 1 < options.max_iter,
            lambda: (*evaluate(now.x + t * d), jnp.ones((), int)),
            lambda: (now.loss, now.gradient, jnp.zeros((), int)),
        )
        return t, *ahead

    def point(t):
        f, g = evaluate(now.x + t * d)
        return Point(t, f, g, g @ d)

    start_point = Point(jnp.zeros_like(t), now.loss, now.gradient, slope)
    budget = options.max_eval - now.evaluations
    accepted, evaluations = strong_wolfe(
        point, start_point, t, jnp.abs(d).max(), options.tolerance_change, budget
    )
    return accepted.t, accepted.f, accepted.g, evaluations


def _direction(state: LBFGSState, gradient: jax.Array) -> LBFGSState:
    """Add the last step to the history and compute the next direction by the two-loop recursion."""
    first = state.n_iter == 0
    size = state.ro.shape[0]
    y, s = gradient - state.prev_flat_grad, state.d * state.t
    curvature = y @ s
    # Without positive curvature the inverse Hessian would not be positive definite; torch skips the pair.
    keep = ~first & (curvature > 1e-10)
    # An index beyond the ring writes nothing, so that no cond is needed around the three updates.
    at_end = jnp.where(keep, state.pairs % size, size)
    old_dirs = state.old_dirs.at[at_end].set(y, mode="drop")
    old_stps = state.old_stps.at[at_end].set(s, mode="drop")
    ro = state.ro.at[at_end].set(1.0 / curvature, mode="drop")
    H_diag = jnp.where(keep, curvature / (y @ y), state.H_diag)
    pairs = state.pairs + keep
    n = jnp.minimum(pairs, size)

    def backward(k, carry):  # from the newest pair to the oldest
        q, al = carry
        i = (pairs - 1 - k) % size
        a = (old_stps[i] @ q) * ro[i]
        return q - a * old_dirs[i], al.at[i].set(a)

    q, al = jax.lax.fori_loop(0, n, backward, (-gradient, jnp.zeros_like(ro)))

    def forward(k, r):  # and from the oldest to the newest
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


ARMIJO, CURVATURE = 1e-4, 0.9


class Point(NamedTuple):
    """A step length with its loss, gradient, and slope along the direction."""

    t: jax.Array
    f: jax.Array
    g: jax.Array
    slope: jax.Array


PointAt: TypeAlias = Callable[[jax.Array], Point]


def strong_wolfe(
    evaluate: PointAt, start: Point, t: jax.Array, longest: jax.Array, tolerance: float, max_ls: jax.Array
) -> tuple[Point, jax.Array]:
    """Return a point that meets the strong Wolfe conditions, or the best one, and the number of evaluations.

    From torch/optim/lbfgs.py; the branches keep torch's order, in which the first that applies wins.
    `t` is the first length to try. The search ends after `max_ls` steps, or when the bracket times `longest`,
    the direction's largest element, is below `tolerance`.
    """
    low, high, done, steps, evaluations = _bracket(evaluate, start, t, max_ls)
    first_is_low = low.f <= high.f
    low, high = _where(first_is_low, low, high), _where(first_is_low, high, low)
    point, more = _zoom(evaluate, start, low, high, done, steps, longest, tolerance, max_ls)
    return point, evaluations + more


def _where(condition: jax.Array, a: Point, b: Point) -> Point:
    return Point(*(jnp.where(condition, x, y) for x, y in zip(a, b, strict=True)))


def _bracket(
    evaluate: PointAt, start: Point, t: jax.Array, max_ls: jax.Array
) -> tuple[Point, Point, jax.Array, jax.Array, jax.Array]:
    """Return two points that bracket an acceptable one, or an acceptable point twice."""

    def stops(i, before, current):
        climbed = (current.f > start.f + ARMIJO * current.t * start.slope) | (
            (i > 1) & (current.f >= before.f)
        )
        good = ~climbed & (jnp.abs(current.slope) <= -CURVATURE * start.slope)
        return climbed | good | (current.slope >= 0), good

    def go_on(carry):
        i, before, current = carry
        return (i < max_ls) & ~stops(i, before, current)[0]

    def longer(carry):
        i, before, current = carry
        bounds = (current.t + 0.01 * (current.t - before.t), current.t * 10)
        return i + 1, current, evaluate(_cubic(before, current, bounds))

    i, before, current = jax.lax.while_loop(go_on, longer, (jnp.zeros((), int), start, evaluate(t)))
    # torch falls back to the starting point as one end of the bracket when the search is exhausted.
    exhausted = i == max_ls
    done = ~exhausted & stops(i, before, current)[1]
    first = _where(exhausted, start, _where(done, current, before))
    return first, current, done, i, i + 1


def _zoom(evaluate, start, low, high, done, steps, longest, tolerance, max_ls):
    """Shrink the bracket, one end at a time; return the end with the lower value."""

    def go_on(carry):
        low, high, done, i, _, _ = carry
        return ~done & (i < max_ls) & ~(jnp.abs(high.t - low.t) * longest < tolerance)

    def narrower(carry):
        low, high, _, i, first_is_low, poor = carry
        a, b = _where(first_is_low, low, high), _where(first_is_low, high, low)
        t, poor = _inside(_cubic(a, b), a, b, poor)
        new = evaluate(t)
        worse = (new.f > start.f + ARMIJO * t * start.slope) | (new.f >= low.f)
        done = ~worse & (jnp.abs(new.slope) <= -CURVATURE * start.slope)
        turned = ~worse & ~done & (new.slope * (high.t - low.t) >= 0)
        # A worse point replaces the high end, and may even so be the lower of the two then.
        moved_high = _where(worse, new, _where(turned, low, high))
        moved_low = _where(worse, low, new)
        a, b = _where(first_is_low, moved_low, moved_high), _where(first_is_low, moved_high, moved_low)
        first_is_low = jnp.where(worse, a.f <= b.f, first_is_low)
        return _where(first_is_low, a, b), _where(first_is_low, b, a), done, i + 1, first_is_low, poor

    # Which end comes first matters: torch interpolates from the first to the second.
    first_is_low = jnp.ones((), bool)
    carry = (low, high, done, steps, first_is_low, jnp.zeros((), bool))
    low, _, _, i, _, _ = jax.lax.while_loop(go_on, narrower, carry)
    return low, i - steps


def _inside(t: jax.Array, a: Point, b: Point, poor: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Push t a tenth of the bracket away from an end that it approached twice in a row."""
    least, most = jnp.minimum(a.t, b.t), jnp.maximum(a.t, b.t)
    margin = 0.1 * (most - least)
    near = jnp.minimum(most - t, t - least) < margin
    push = near & (poor | (t >= most) | (t <= least))
    pushed = jnp.where(jnp.abs(t - most) < jnp.abs(t - least), most - margin, least + margin)
    return jnp.where(push, pushed, t), near & ~push


def _cubic(a: Point, b: Point, bounds: tuple[jax.Array, jax.Array] | None = None) -> jax.Array:
    """Return the minimum, within bounds, of the cubic through two points with their slopes."""
    low, high = bounds or (jnp.minimum(a.t, b.t), jnp.maximum(a.t, b.t))
    d1 = a.slope + b.slope - 3 * (a.f - b.f) / (a.t - b.t)
    square = d1**2 - a.slope * b.slope
    # Both branches of `where` are evaluated, so keep the root's argument non-negative.
    d2 = jnp.sqrt(jnp.maximum(square, 0))
    forward = b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2))
    backward = a.t - (a.t - b.t) * ((a.slope + d2 - d1) / (a.slope - b.slope + 2 * d2))
    minimum = jnp.clip(jnp.where(a.t <= b.t, forward, backward), low, high)
    return jnp.where(square >= 0, minimum, (low + high) / 2)
