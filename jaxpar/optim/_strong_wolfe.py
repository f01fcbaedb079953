"""The line search of torch's L-BFGS: bracket, then zoom, by cubic interpolation.

Translated from torch/optim/lbfgs.py; the branches keep torch's order, in which the first that applies wins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

ARMIJO, CURVATURE = 1e-4, 0.9


class Point(NamedTuple):
    """A step length with its loss, gradient, and slope along the direction."""

    t: jax.Array
    f: jax.Array
    g: jax.Array
    slope: jax.Array


Evaluate: TypeAlias = Callable[[jax.Array], Point]


def strong_wolfe(
    evaluate: Evaluate, start: Point, t: jax.Array, longest: jax.Array, tolerance: float, max_ls: jax.Array
) -> tuple[Point, jax.Array]:
    """Return a point that meets the strong Wolfe conditions, or the best one, and the number of evaluations.

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
    evaluate: Evaluate, start: Point, t: jax.Array, max_ls: jax.Array
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
