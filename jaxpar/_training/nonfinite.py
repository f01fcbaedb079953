"""finite: which gradient is the first that is infinite or not a number. Traced."""

from __future__ import annotations

import jax
import jax.numpy as jnp

NONE = -1
"""In place of a parameter's number: all gradients were finite so far."""
WIDTH = 1024
"""Of the table, at most."""


def first_bad(gradients: list) -> jax.Array:
    """The number of the first gradient that is not finite, or NONE."""
    finite = jnp.stack([jnp.isfinite(g).all() for g in gradients])
    return jnp.where(finite.all(), NONE, jnp.argmin(finite).astype(jnp.int32))


def first_bad_on_cpu(gradients: list) -> jax.Array:
    """The same for CPU devices, where XLA makes a slow loop of `isfinite(g).all()`.

    0 times what is not finite is nan, and so is every sum with it. A matrix is multiplied with zeros as fast
    as memory is read. What is left of each gradient is a row of one table, so a small net does not pay for
    several more operations for each of its parameters.
    """
    numbers = [i for i, g in enumerate(gradients) if g.size]
    if not numbers:
        return jnp.int32(NONE)
    given = [gradients[i] for i in numbers]
    # Not a constant: a compiler may leave out a product with zeros that it knows. Should it be nan, all rows
    # seem bad, and the first of them is.
    zero = given[0][(0,) * given[0].ndim].real * 0
    rows = [_row(g, zero) for g in given]
    n = max(len(row) for row in rows)
    table = jnp.stack([jnp.pad(row, (0, n - len(row))) for row in rows])
    finite = jnp.isfinite(table @ _zeros(n, zero, table.dtype))
    return jnp.where(finite.all(), NONE, jnp.array(numbers, jnp.int32)[jnp.argmin(finite)])


def _row(g: jax.Array, zero: jax.Array) -> jax.Array:
    """Zeros, or nan where something in g is not finite; at most WIDTH."""
    while g.ndim > 1 or g.size > WIDTH:
        if g.ndim == 1:
            g = jnp.pad(g, (0, -g.size % WIDTH)).reshape(-1, WIDTH)
        g = g @ _zeros(g.shape[-1], zero, g.dtype)
    return jnp.atleast_1d(g) * zero.astype(g.dtype)


def _zeros(n: int, zero: jax.Array, dtype: jnp.dtype) -> jax.Array:
    return jnp.full(n, zero.astype(dtype))
