"""nonfinite: which gradient is infinite or not a number, and how the host learns it without waiting."""

from __future__ import annotations

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

NONE = -1  # replaces a parameter's number: all gradients were finite so far
WIDTH = 1024  # of the table, at most
SMALL = 4096  # elements; gradients up to that are looked at together


def first_bad(gradients: list) -> jax.Array:
    """Return the number of the first gradient that is not finite, or NONE."""
    finite = jnp.stack([jnp.isfinite(g).all() for g in gradients])
    return jnp.where(finite.all(), NONE, jnp.argmin(finite).astype(jnp.int32))


def first_bad_on_cpu(gradients: list) -> jax.Array:
    """`first_bad` for CPU devices, where XLA compiles `isfinite(g).all()` to a slow loop."""
    small = [i for i, g in enumerate(gradients) if 0 < g.size <= SMALL]
    large = [i for i, g in enumerate(gradients) if g.size > SMALL]
    positions = [look(gradients, numbers) for look, numbers in ((_joined, small), (_apart, large)) if numbers]
    first = functools.reduce(jnp.minimum, positions, jnp.int32(len(gradients)))
    return jnp.where(first == len(gradients), NONE, first)


def _joined(gradients: list, numbers: list[int]) -> jax.Array:
    """Return the number of the first small gradient that is not finite, or how many gradients there are."""
    # As one array: an operation for each of a thousand parameters takes longer to compile than their step.
    wide = functools.reduce(jnp.promote_types, (gradients[i].dtype for i in numbers))
    joined = jnp.concatenate([gradients[i].ravel().astype(wide) for i in numbers])
    # Not a constant: a compiler may leave out a product with zeros that it knows. Should it be nan, the
    # other branch looks at every element.
    zero = joined[0] * 0

    def find() -> jax.Array:
        ends = np.cumsum([gradients[i].size for i in numbers])
        at = jnp.argmin(jnp.isfinite(joined))
        leaf = jnp.array(numbers, jnp.int32)[jnp.searchsorted(ends, at, side="right")]
        return jnp.where(jnp.isfinite(joined[at]), jnp.int32(len(gradients)), leaf)

    # 0 times a value that is not finite is nan, and nan survives every sum.
    return jax.lax.cond(jnp.isfinite((joined * zero).sum()), lambda: jnp.int32(len(gradients)), find)


def _apart(gradients: list, numbers: list[int]) -> jax.Array:
    """`_joined` for large gradients, of which a copy would take longer than looking at them."""
    zero = gradients[numbers[0]][(0,) * gradients[numbers[0]].ndim].real * 0
    # A matrix is multiplied with zeros as fast as memory is read. Should zero be nan, all rows seem bad, and
    # the first of them is.
    rows = [_row(gradients[i], zero) for i in numbers]
    n = max(len(row) for row in rows)
    table = jnp.stack([jnp.pad(row, (0, n - len(row))) for row in rows])
    finite = jnp.isfinite(table @ jnp.full(n, zero.astype(table.dtype)))
    first = jnp.array(numbers, jnp.int32)[jnp.argmin(finite)]
    return jnp.where(finite.all(), jnp.int32(len(gradients)), first)


def _row(g: jax.Array, zero: jax.Array) -> jax.Array:
    """Zeros, or nan where something in g is not finite; at most WIDTH."""
    while g.ndim > 1 or g.size > WIDTH:
        if g.ndim == 1:
            g = jnp.pad(g, (0, -g.size % WIDTH)).reshape(-1, WIDTH)
        g = g @ jnp.full(g.shape[-1], zero.astype(g.dtype))
    return jnp.atleast_1d(g) * zero.astype(g.dtype)


PAUSE = 0.02  # seconds between two checks; reading takes as long as a tenth of a short step
LAG = 8  # updates before a report is read, where several processes have to read the same one


class Reports:
    """Reports of the last steps. Trouble stays in every later one until it is cleared, so any will do."""

    def __init__(self, together: bool) -> None:
        self._together = together
        self._first: jax.Array | None = None  # the oldest unread one
        self._last: jax.Array | None = None
        self._age, self._looked = 0, 0.0

    def add(self, report: jax.Array) -> None:
        self._last = report
        self._age += 1
        if self._first is None:
            self._first, self._age = report, 0

    def read(self, wait: bool) -> tuple[int, int] | None:
        """The gradient that was not finite and the update, or NONE and their number; the last if `wait`."""
        if self._first is None or not (wait or self._is_due()):
            return None
        report = self._last if wait else self._first
        self._first, self._age = None if report is self._last else self._last, 0
        leaf, update = map(int, np.asarray(report))
        return leaf, update

    def _is_due(self) -> bool:
        # Processes that train together have to find trouble in the same call: one that raised earlier would
        # update while the others wait. So the number of updates determines when they read.
        if self._together:
            return self._age >= LAG
        now = time.monotonic()
        if self._first is None or now - self._looked < PAUSE:
            return False
        if not self._first.is_ready():  # type: ignore[attr-defined]
            return False
        self._looked = now
        return True

    def clear(self) -> None:
        self._first = self._last = None
