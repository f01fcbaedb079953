"""exact: the Python number that an array of one number was made of.

torch keeps a learning rate as Python's float64 whatever the parameters are, and its schedulers multiply that
number on. Here the rate is an array of the optimizer's state, in float32 unless x64 is on, and while a step
is running it cannot be read without waiting for the step. So this process remembers of what number an array
was made. Whoever returns the same value in another array says so with `remember`.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_numbers: dict[int, tuple[weakref.ref[Any], float]] = {}
"""By the array's id, since arrays cannot be hashed; an entry goes when its array does."""


def scalar(number: float) -> jax.Array:
    """A number in JAX's widest float, which remembers it."""
    return remember(jnp.asarray(number, float), number)


def like(x: jax.Array, number: float) -> jax.Array:
    """A number in the place of an array: of its type and where it is, so that no program is compiled anew."""
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.result_type(float)
    where = x.sharding if isinstance(x, jax.Array) else None
    new = np.full(np.shape(x), number, dtype)
    # An uncommitted array follows the others of its program, so its successor must be uncommitted, too.
    return remember(
        jax.device_put(new, where) if getattr(x, "committed", False) else jnp.asarray(new), number
    )


def remember(x: Any, number: float) -> Any:
    """The same array, of which `recall` now knows the number. What is being traced has no value yet."""
    if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer):
        key = id(x)
        _numbers[key] = weakref.ref(x, lambda _: _numbers.pop(key, None)), number
    return x


def recall(x: Any) -> float | None:
    """The number that an array was made of, or None. Waits for nothing."""
    record = _numbers.get(id(x))
    return record[1] if record is not None and record[0]() is x else None


def recall_all(values: list[Any]) -> dict[int, float]:
    """What is known of these, by position."""
    return {i: number for i, x in enumerate(values) if (number := recall(x)) is not None}


def number_of(x: Any, last: float | None = None) -> float:
    """The number in an array; waits for the array if that is not known.

    An array that came back from a file or a compiled program says only the number's rounded value. It is
    `last`, if that rounds to the same; else the shortest decimal number that does: 0.1 for float32's
    0.100000001490116.
    """
    number = recall(x)
    if number is not None:
        return number
    value = np.asarray(x).reshape(())
    # Not remembered: one rank alone may read, and what is remembered is compared between ranks.
    return last if last is not None and value.dtype.type(last) == value else float(str(value))
