"""What the items hold now, so that training may go on: arrays on the host, the rest as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from .._tree import check_alive
from ..errors import CheckpointError
from .item import Leaf
from .plain import encode


def small_of(item: str, leaves: Mapping[str, Leaf]) -> dict[str, Any]:
    """What goes into the manifest, by leaf."""
    return {
        name: {"value": encode(leaf.value, item if leaf.whole else f"{item}: {name}"), "stream": leaf.stream}
        for name, leaf in leaves.items()
        if not leaf.heavy
    }


def on_host(item: str, leaves: Mapping[str, Leaf]) -> dict[str, np.ndarray]:
    """The arrays on the host, where nothing changes them any more.

    A view of a CPU device's array is enough: while it is there, JAX takes other memory for the results
    of a computation to which the array is donated. NumPy arrays are copied; their owner may write to them.
    """
    heavy = {name: leaf.value for name, leaf in leaves.items() if leaf.heavy}
    check_alive(list(heavy.values()), [f"{item}: {name}" for name in heavy], "Checkpointer.save")
    for name, x in heavy.items():
        if isinstance(x, jax.Array):
            heavy[name] = x = _local(f"{item}: {name}", x)
            x.copy_to_host_async()
    return {name: np.asarray(x) if isinstance(x, jax.Array) else np.array(x) for name, x in heavy.items()}


def _local(name: str, x: jax.Array) -> jax.Array:
    if x.is_fully_addressable:
        return x
    if x.is_fully_replicated:
        return x.addressable_data(0)
    raise CheckpointError(
        f"Checkpointer.save: {name} is spread over several processes, and only rank 0 writes. Gather it "
        "first (jax.experimental.multihost_utils.process_allgather)."
    )
