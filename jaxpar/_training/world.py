"""World: the replicas of all processes, seen from one of them.

To the user everything stays in the process, as with torch, so that an operation of one rank alone cannot make
a different rank wait. Only the compiled step sees arrays over the devices of all processes. They share the
same buffers: nothing is copied on the way in or out.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from .._parallel.placement import Placement, place
from .._typing import DeviceLike, PyTree
from ..distributed.connecting import connect
from ..distributed.exchange import exchange
from ..distributed.group import Group, current
from ..errors import DeviceError


@dataclasses.dataclass(frozen=True)
class World:
    """The devices of this process and of all processes, in the order of ranks."""

    local: Placement  # this process's replicas
    everywhere: Placement  # all N of them
    rank: int  # of this process
    size: int  # the number of processes
    group: Group | None = None  # of these processes; None for a process alone

    @property
    def N(self) -> int:
        return self.everywhere.N

    @property
    def first(self) -> int:
        return self.rank * self.local.N

    def shared(self, tree: PyTree) -> PyTree:
        """Return arrays that all devices of this process hold, as arrays that all devices hold."""
        return self._through(tree, self.everywhere, False)

    def stacked(self, tree: PyTree) -> PyTree:
        """Return arrays [K, ...] with one entry for each device of this process, as arrays [N, ...]."""
        return self._through(tree, self.everywhere, True)

    def local_shared(self, tree: PyTree) -> PyTree:
        """The inverse of `shared`."""
        if self.size > 1 and len(self.local.devices) == 1:
            return jax.tree.map(lambda x: x.addressable_data(0), tree)
        return self._through(tree, self.local, False)

    def local_stacked(self, tree: PyTree) -> PyTree:
        """The inverse of `stacked`."""
        return self._through(tree, self.local, True)

    def _through(self, tree: PyTree, placement: Placement, stacked: bool) -> PyTree:
        if self.size == 1:
            return tree
        default = placement.stacked if stacked else placement.replicated
        on_mesh = placement.outer_mesh is not None

        def one(x: Any) -> Any:
            sharding, source = default, x.sharding
            if on_mesh and isinstance(source, NamedSharding):
                # Over the other axes of a user's mesh it is split on both sides alike.
                sharding = NamedSharding(placement.mesh, source.spec)
            shape = (placement.N, *x.shape[1:]) if stacked else x.shape
            if isinstance(x, jax.ShapeDtypeStruct):
                return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)
            if len(self.local.devices) == 1:
                pieces = [x.addressable_data(0)]  # a tenth of the time
            else:
                pieces = [s.data for s in sorted(x.addressable_shards, key=lambda s: order[s.device])]
            return jax.make_array_from_single_device_arrays(shape, sharding, pieces)

        order = self._order
        return jax.tree.map(one, tree)

    @functools.cached_property
    def _order(self) -> dict[jax.Device, int]:
        return {d: i for i, d in enumerate(self.local.devices)}


ALONE = World(Placement(()), Placement(()), 0, 1)
"""The world of a module without DistributedDataParallel: its arrays are this process's and the program's at
once."""


def is_flat(placement: Placement) -> bool:
    """Whether small arrays are sent as one, see `Message`."""
    processes = {d.process_index for d in placement.devices}
    return placement.devices[0].platform == "cpu" and len(processes) > 1


def make_world(
    device_ids: Iterable[DeviceLike] | Placement | None,
    dim: int,
    group: Group | None = None,
    on_mesh: Placement | None = None,
) -> World:
    """Return the world of a process group, the default one if left out, or of this process alone."""
    name = "DistributedDataParallel"
    local = place(device_ids, None, dim, function=name, one_is_none=False) if on_mesh is None else on_mesh
    group = group or current()
    if group is None or group.size == 1 or local.of_topology:
        return World(local, local, 0, 1, group)
    local_ids = " ".join(str(d.id) for d in local.positions.flat)
    texts = exchange("DistributedDataParallel: devices", local_ids, group=group)
    ids = [list(map(int, text.split())) for text in texts]
    for r, rank_ids in zip(group.ranks, ids, strict=True):
        if len(rank_ids) != len(ids[0]):
            raise DeviceError(
                f"DistributedDataParallel: rank {group.ranks[0]} uses {len(ids[0])} devices and rank {r} "
                f"{len(rank_ids)}; all ranks must use the same number. Give device_ids."
            )
    # Ids are not consecutive over processes (0, 1, 2048, 2049), so they cannot be used as positions.
    by_id = {d.id: d for d in jax.devices(local.devices[0].platform)}
    positions = np.array([by_id[i] for rank_ids in ids for i in rank_ids])
    everywhere = local.extended(positions.reshape(-1, *local.positions.shape[1:]))
    connect(list(positions.flat), group)
    return World(local, everywhere, group.rank, group.size, group)
