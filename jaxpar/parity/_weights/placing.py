"""place: host bytes to where an old array was."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def place(array: np.ndarray, old: Any) -> jax.Array:
    """A copy of a host array on the devices of `old`, spread like it.

    It is always a copy: on a CPU JAX may otherwise share the memory with torch, whose optimizer
    would then change JAX's array. An array that JAX was free to move stays free.
    """
    sharding = old.sharding if getattr(old, "committed", False) else None
    if isinstance(old, jax.ShapeDtypeStruct):
        sharding = old.sharding
    return jax.device_put(array, sharding, may_alias=False)
