"""Scalars, possibly still being computed on a device: accepted without waiting, read when ready."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from ..errors import MetricError

if TYPE_CHECKING:
    import jax

Number = bool | int | float


def check_scalar(value: object, name: str, function: str) -> None:
    """Raise MetricError unless `value` is a single real number; never waits for a device."""
    if isinstance(value, Number | np.number | np.bool_) and not isinstance(value, np.complexfloating):
        return
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.core.Tracer):
        raise MetricError(
            f"{function}: {name} is being traced: it has a value only when the compiled function runs. "
            "Return it from the function and pass the result."
        )
    if not isinstance(value, np.ndarray) and not is_device_array(value):
        raise MetricError(
            f"{function}: {name} is {value!r:.40} of type {type(value).__qualname__}, and a metric is a "
            "number or an array with a single one."
        )
    if value.shape != ():
        raise MetricError(
            f"{function}: {name} has shape {tuple(value.shape)}, and a metric is one number. Take its mean "
            "or sum, or give each value a name of its own."
        )
    # The dtype of JAX's random keys has no `kind`. bfloat16's is V, which is accepted.
    if getattr(value.dtype, "kind", "O") in "cOSUmM":
        raise MetricError(f"{function}: {name} has dtype {value.dtype}, and a metric is a real number.")
    if not isinstance(value, np.ndarray):
        _check_array(value, name, function)


def is_device_array(value: object) -> TypeGuard[jax.Array]:
    # By attribute, because isinstance would need JAX to be imported.
    return hasattr(value, "is_deleted")


def _check_array(value: jax.Array, name: str, function: str) -> None:
    if value.is_deleted():
        raise MetricError(
            f"{function}: {name} was donated to a later computation or deleted; pass the value before, or "
            "keep the one that the computation returned."
        )
    if not value.is_fully_addressable and not value.is_fully_replicated:
        raise MetricError(
            f"{function}: {name} is spread over several processes. Make it the same on all of them first: "
            "jaxpar.distributed.all_reduce, or a mean inside of the step."
        )


def is_ready(value: object) -> bool:
    """Return whether reading a value waits for nothing; true for host numbers and deleted arrays."""
    if not is_device_array(value) or value.is_deleted():  # a deleted array raises if it is asked
        return True
    return value.is_ready()  # type: ignore[attr-defined]  # JAX declares it for its own class only


def read(value: object) -> Number:
    """Return the Python number; waits for a device array that is not ready."""
    array = np.asarray(value)
    # bfloat16 is not a float to NumPy: `item` would return an ml_dtypes scalar.
    return array.item() if array.dtype.kind in "biu" else float(array.astype(np.float64))
