"""exact: the Python number from which a one-element array was made.

An optimizer's rate is an array, in float32 unless x64 is on, and while a step is running it cannot be read
without waiting. So this process remembers the number. Code that copies such an array calls `remember`.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_numbers: dict[int, tuple[weakref.ref[Any], float]] = {}  # by the array's id, since arrays cannot be hashed


def scalar(number: float) -> jax.Array:
    """A number in JAX's widest float, which remembers it."""
    return remember(jnp.asarray(number, float), number)


def like(x: jax.Array, number: float) -> jax.Array:
    """Return a number as an array like x, in dtype and devices, so that no program is compiled anew."""
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.result_type(float)
    where = x.sharding if isinstance(x, jax.Array) else None
    new = np.full(np.shape(x), number, dtype)
    # An uncommitted array follows the others of its program, so its successor must be uncommitted, too.
    committed = getattr(x, "committed", False)
    return remember(jax.device_put(new, where) if committed else jnp.asarray(new), number)


def remember(x: Any, number: float) -> Any:
    """Return the same array, and let `recall` find its number."""
    # A tracer has no value yet.
    if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer):
        key = id(x)
        _numbers[key] = weakref.ref(x, lambda _: _numbers.pop(key, None)), number
    return x


def recall(x: Any) -> float | None:
    """Return the number from which an array was made, or None. Never waits."""
    # Ids are reused, so the array itself must match.
    record = _numbers.get(id(x))
    return record[1] if record is not None and record[0]() is x else None


def number_of(x: Any, last: float | None = None) -> float:
    """Return the number in an array; waits for the array if the number is not known."""
    number = recall(x)
    if number is not None:
        return number
    # An array from a file or a compiled program holds only the rounded value. Its number is `last`, if that
    # rounds to the same, else the shortest decimal number that does: 0.1 for float32's 0.100000001490116.
    value = np.asarray(x).reshape(())
    # Not remembered: one rank alone may read, and what is remembered is compared between ranks.
    return last if last is not None and value.dtype.type(last) == value else float(str(value))
