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
    all. Parameters and moments are not compared, since DistributedDataParallel keeps them equal. `own` names
    the items that may be something else on each rank.
    """

    small: State
    arrays: dict[tuple[str, str], Array]
    digests: dict[str, str]
    own: list[str]


def snapshot(items: Mapping[str, PyTree]) -> Snapshot:
    """What the items hold now.

    Raises:
      CheckpointError: something in them cannot be saved.
    """
    taken = Snapshot({}, {}, {}, [])
    for name, given in items.items():
        item = item_of(name, given)
        small = taken.small[name] = {}
        if isinstance(item, StatefulItem):
            large: dict[str, Array] = {}
            small["state"] = {"value": encode(item.give(), name, "state", large), "stream": False}
            taken.arrays.update({(name, leaf): value for leaf, value in large.items()})
            if size() > 1:
                for leaf, value in large.items():
                    x = np.asarray(_local(f"{name}: {leaf}", value))
                    taken.digests[f"{name}: {leaf}"] = f"{x.dtype}{x.shape} {digest(flat_bytes(x).data)}"
            if not item.alike:
                taken.own.append(name)
            continue
        for leaf, (value, stream, _) in item.leaves().items():
            if is_array(value) and not stream and value.size and is_storable(value):
                taken.arrays[name, leaf] = value
            else:
                small[leaf] = {"value": encode(value, name, leaf), "stream": stream}
        if small and not item.alike:
            taken.own.append(name)
    return taken


def on_host(arrays: Mapping[tuple[str, str], Array]) -> Arrays:
    """The arrays on the host, where nothing changes them any more.

    A view of a CPU device's array is enough: while it is there, JAX takes other memory for the results
    of a computation to which the array is donated. NumPy arrays are copied; their owner may write to them.

    Raises:
      DeletedError: an array was donated. CheckpointError: it is spread over processes.
    """
    here = {at: _local(": ".join(at), x) for at, x in arrays.items()}
    return {at: np.array(x) if isinstance(x, np.ndarray) else np.asarray(x) for at, x in here.items()}


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
