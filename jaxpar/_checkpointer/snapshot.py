"""What the items hold now, so that training may go on: arrays on the host, the rest as JSON."""

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
from .plain import Array, encode, flat_bytes, is_storable
from .step import Arrays, State, digest


class Snapshot(NamedTuple):
    """What items hold at one moment, by item and leaf; the arrays are still theirs.

    `digests` are those of the large arrays in state dicts, if there are several ranks: they must be equal on
    all. Parameters and moments are not compared, since DistributedDataParallel keeps them equal.
    """

    small: State
    arrays: dict[str, dict[str, Array]]
    digests: dict[str, str]


def snapshot(items: Mapping[str, PyTree]) -> Snapshot:
    """What the items hold now.

    Raises:
      CheckpointError: something in them cannot be saved.
    """
    taken = Snapshot({}, {}, {})
    for name, given in items.items():
        item = item_of(name, given)
        small, arrays = taken.small.setdefault(name, {}), taken.arrays.setdefault(name, {})
        if isinstance(item, StatefulItem):
            small["state"] = {"value": encode(item.give(), name, "state", arrays), "stream": False}
            if size() > 1:
                for leaf, x in on_host({name: arrays}, copied=False)[name].items():
                    taken.digests[f"{name}: {leaf}"] = f"{x.dtype}{x.shape} {digest(flat_bytes(x).data)}"
            continue
        for leaf, (value, stream, _) in item.leaves().items():
            if is_array(value) and not stream and value.size and is_storable(value):
                arrays[leaf] = value
            else:
                small[leaf] = {"value": encode(value, name, leaf), "stream": stream}
    return taken


def on_host(arrays: dict[str, dict[str, Array]], copied: bool = True) -> Arrays:
    """The arrays on the host, where nothing changes them any more.

    A view of a CPU device's array is enough: while it is there, JAX takes other memory for the results
    of a computation to which the array is donated. NumPy arrays are copied; their owner may write to them.

    Args:
      copied: False to look at the arrays and let go of them again.

    Raises:
      DeletedError: an array was donated. CheckpointError: it is spread over processes.
    """
    here = {
        item: {leaf: _local(f"{item}: {leaf}", x) for leaf, x in each.items()}
        for item, each in arrays.items()
    }
    return {
        item: {
            leaf: np.array(x) if copied and isinstance(x, np.ndarray) else np.asarray(x)
            for leaf, x in each.items()
        }
        for item, each in here.items()
    }


def _local(name: str, x: Array) -> Array:
    """One copy of an array on this process's devices, on its way to the host."""
    check_alive([x], [name], "Checkpointer.save")
    if isinstance(x, jax.Array):
        if not x.is_fully_addressable:
            if not x.is_fully_replicated:
                raise CheckpointError(
                    f"Checkpointer.save: {name} is spread over several processes, and only rank 0 writes. "
                    "Gather it first (jax.experimental.multihost_utils.process_allgather)."
                )
            x = x.addressable_data(0)
        x.copy_to_host_async()  # all of them before any is waited for
    return x
