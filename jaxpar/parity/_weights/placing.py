"""place: host arrays to where old ones were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from .copying import fresh, on_all_cores


def place(arrays: Mapping[str, np.ndarray], old: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Copies of host arrays on the devices of the old ones, spread like these.

    They are copies because JAX on a CPU would share the memory with torch, whose optimizer would
    then change JAX's array. An array that JAX was free to move stays free.
    """
    copies = on_all_cores(fresh, arrays.values())
    placed = {
        path: jax.device_put(copy, _sharding(old[path])) for path, copy in zip(arrays, copies, strict=True)
    }
    return jax.block_until_ready(placed)


def _sharding(old: Any) -> Any:
    if isinstance(old, jax.ShapeDtypeStruct):
        return old.sharding
    return old.sharding if getattr(old, "committed", False) else None
