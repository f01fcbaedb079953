"""nonfinite: which gradient is infinite or not a number, and how the host learns it without waiting."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np

NONE = -1  # replaces a parameter's number: all gradients were finite so far
SMALL = 4096  # elements; the check sums a larger gradient first
LARGE = 2**20  # elements; reading more than that takes longer than compiling a kernel of its own does
TOGETHER = 64  # gradients in one concatenation, whose time to compile grows with the square of their number


def first_bad(gradients: list) -> jax.Array:
    """Return the number of the first gradient that is not finite, or NONE."""
    finite = jnp.stack([jnp.isfinite(g).all() for g in gradients])
    return jnp.where(finite.all(), NONE, jnp.argmin(finite).astype(jnp.int32))


def first_bad_on_cpu(gradients: list) -> jax.Array:
    """`first_bad` for CPU devices, where XLA compiles `isfinite(g).all()` to a slow loop."""
    numbers = [i for i, g in enumerate(gradients) if g.size]
    if not numbers:
        return jnp.int32(NONE)
    # 0 times a value that is not finite is nan, and nan survives every sum. Not a constant: a compiler may
    # leave out a product with zeros that it knows. Should it be nan, so is everything, and the first
    # gradient, from which it comes, is the first that is not finite.
    zero = gradients[numbers[0]].ravel()[0].real * 0
    alike: dict[tuple, list[tuple[int, jax.Array]]] = {}
    for i in numbers:
        row = _row(gradients[i], zero.astype(gradients[i].dtype))
        alike.setdefault((row.size, row.dtype), []).append((i, row))
    finite, order = [], []
    for rows in alike.values():
        for start in range(0, len(rows), TOGETHER):
            part = rows[start : start + TOGETHER]
            # As one array: an operation for each of a thousand parameters takes longer to compile than
            # their step.
            table = jnp.concatenate([row for _, row in part]).reshape(len(part), -1)
            finite.append(jnp.isfinite((table * zero.astype(table.dtype)).sum(1)))
            order += [i for i, _ in part]
    joined = jnp.concatenate(finite)
    first = jnp.where(joined, len(gradients), jnp.array(order, jnp.int32)).min()
    return jnp.where(joined.all(), NONE, first)


def _row(g: jax.Array, zero: jax.Array) -> jax.Array:
    """Return what is finite only if g is: its elements, or sums of their products with zero."""
    last = g.shape[-1] if g.ndim > 1 else 1
    if g.size > LARGE and (width := 1024 if g.size % 1024 == 0 else last) > 1:
        return g.reshape(-1, width) @ jnp.full(width, zero)  # as fast as memory is read
    if g.size > SMALL and (width := 256 if g.size % 256 == 0 else last) > 1:
        matrix = g.reshape(-1, width)
        # Two rows: XLA calls a library for a product of matrices and compiles one of a vector.
        return (jnp.full((2, len(matrix)), zero) @ matrix).ravel()
    return g.ravel()


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
