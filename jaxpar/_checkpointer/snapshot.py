"""Capture the items' values so that training may continue: arrays on the host, the rest as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from .._tree import check_alive, is_array
from .._typing import PyTree
from ..distributed.group import size
from ..errors import CheckpointError
from .item import StatefulItem, item_of
from .json_values import Array, encode, flat_bytes, is_storable
from .step import Arrays, State, digest


class StateSnapshot(NamedTuple):
    """The items' values at one moment, by item and leaf; `arrays` still refers to the items' own arrays.

    With several ranks, `digests` covers the large arrays in state dicts. `per_rank` lists items that may
    differ between ranks.
    """

    small: State
    arrays: dict[tuple[str, str], Array]
    digests: dict[str, str]
    per_rank: list[str]


def snapshot(items: Mapping[str, PyTree]) -> StateSnapshot:
    contents = StateSnapshot({}, {}, {}, [])
    for name, source in items.items():
        item = item_of(name, source)
        small = contents.small[name] = {}
        if isinstance(item, StatefulItem):
            large: dict[str, Array] = {}
            small["state"] = {"value": encode(item.give(), name, "state", large), "stream": False}
            contents.arrays.update({(name, leaf): value for leaf, value in large.items()})
            # Hashing needs the bytes on the host, so a single process skips it.
            if size() > 1:
                for leaf, value in large.items():
                    x = np.asarray(_local(f"{name}: {leaf}", value))
                    contents.digests[f"{name}: {leaf}"] = f"{x.dtype}{x.shape} {digest(flat_bytes(x).data)}"
            if not item.replicated:
                contents.per_rank.append(name)
            continue
        for leaf, (value, stream, _) in item.leaves().items():
            # Random streams stay small values even if they are arrays, since they may differ between ranks.
            if is_array(value) and not stream and value.size and is_storable(value):
                contents.arrays[name, leaf] = value
            else:
                small[leaf] = {"value": encode(value, name, leaf), "stream": stream}
        if small and not item.replicated:
            contents.per_rank.append(name)
    return contents


def on_host(arrays: Mapping[tuple[str, str], Array]) -> Arrays:
    # A view of a CPU device's array suffices: as long as it exists, JAX allocates new memory for the results
    # of a computation to which the array is donated. A NumPy array's owner may write to it.
    local_arrays = {at: _local(": ".join(at), x) for at, x in arrays.items()}
    return {at: np.array(x) if isinstance(x, np.ndarray) else np.asarray(x) for at, x in local_arrays.items()}


def _local(name: str, x: Array) -> Array:
    """Return one copy of an array on this process's devices and start its transfer to the host."""
    check_alive([x], [name], "Checkpointer.save")
    if isinstance(x, jax.Array):
        if not x.is_fully_addressable:
            if not x.is_fully_replicated:
                raise CheckpointError(
                    f"Checkpointer.save: {name} is spread over several processes, and only rank 0 writes. "
                    "Gather it first (jax.experimental.multihost_utils.process_allgather)."
                )
            x = x.addressable_data(0)
        x.copy_to_host_async()  # start all transfers before waiting for one
    return x
