"""mesh_placement: the replicas are one axis of a user's mesh, and the other axes stay the compiler's.

A replica is then a group of devices. Programs run on a mesh of the same devices whose data axis has the name
that the replicas' axis has everywhere; results get the user's mesh back, see `_devices.context`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .._typing import REPLICA
from ..errors import MisplacedError
from .backends import FOR_A_MESH
from .placement import Placement, place


@dataclasses.dataclass(frozen=True)
class MeshPlacement(Placement):
    """A Placement over the axis `axis` of `user_mesh`."""

    user_mesh: Mesh | None = None
    axis: str = REPLICA

    @property
    def N(self) -> int:
        assert self.user_mesh is not None
        return self.user_mesh.shape[self.axis]

    @functools.cached_property
    def mesh(self) -> Mesh:
        assert self.user_mesh is not None
        names = tuple(REPLICA if name == self.axis else name for name in self.user_mesh.axis_names)
        return Mesh(self.user_mesh.devices, names, axis_types=(AxisType.Auto,) * len(names))

    def for_value(self, x: Any) -> NamedSharding:
        """Return where all replicas hold a value: over the other axes it stays split as it is."""
        where = getattr(x, "sharding", None)
        if not isinstance(where, NamedSharding) or not isinstance(where.mesh, Mesh):
            return self.replicated
        if not self._covers(where.mesh):
            return self.replicated
        entries = [_without(entry, where.mesh, self.mesh) for entry in where.spec]
        return NamedSharding(self.mesh, PartitionSpec(*entries))

    @property
    def positions(self) -> np.ndarray:
        assert self.user_mesh is not None
        return np.moveaxis(self.user_mesh.devices, self.user_mesh.axis_names.index(self.axis), 0)

    def extended(self, positions: Any) -> MeshPlacement:
        assert self.user_mesh is not None
        names, kinds = self.user_mesh.axis_names, self.user_mesh.axis_types
        devices = np.moveaxis(positions, 0, names.index(self.axis))
        return _over(Mesh(devices, names, axis_types=kinds), self.axis, self.dim)

    def own_part(self, x: Any, name: str, function: str) -> Any:
        """Return this process's part of an array on a mesh over several processes."""
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            return x
        if not isinstance(x.sharding, NamedSharding) or not self._covers(x.sharding.mesh):
            raise MisplacedError(
                f"{function}: {name} is on devices of several processes, as {x.sharding}, and not on mesh=."
            )
        sharding = self.for_value(x)
        if sharding.shard_shape(x.shape) != x.sharding.shard_shape(x.shape):
            raise MisplacedError(
                f"{function}: {name} is split as {x.sharding.spec}, also over the data axis, and every "
                "replica needs all of it. Put it on the mesh without that axis."
            )
        pieces = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, sharding, pieces)

    def _covers(self, mesh: Any) -> bool:
        """Whether a mesh is the user's, with all its processes or without."""
        assert self.user_mesh is not None
        return mesh.axis_names == self.user_mesh.axis_names or np.array_equal(mesh.devices, self.mesh.devices)

    def __reduce__(self):
        raise TypeError("A placement over a mesh cannot be pickled: its devices are this process's.")


def _without(entry: Any, mesh: Mesh, other: Mesh) -> Any:
    """Return an entry of a PartitionSpec with another mesh's names, and without the replicas' axis."""
    names = dict(zip(mesh.axis_names, other.axis_names, strict=True))
    entries = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
    remaining = tuple(names[name] for name in entries if names[name] != REPLICA)
    return None if not remaining else remaining[0] if len(remaining) == 1 else remaining


def placement_for(
    devices: tuple[Any, Any], dim: int, mesh: Mesh | None, axis: str | None, backend: str, function: str
) -> Placement:
    """Return the placement on `devices`, the arguments device_ids and output_device, or on a mesh's axis.

    A mesh over several processes gives this process's part.
    """
    if mesh is None:
        return place(*devices, dim, function=function)
    if devices != (None, None):
        raise TypeError(
            f"{function}: the devices are those of mesh=; leave device_ids and output_device out."
        )
    return _on_axis(mesh, axis, dim, backend, function)


@functools.cache
def _on_axis(mesh: Mesh, axis: str | None, dim: int, backend: str, function: str) -> MeshPlacement:
    if not isinstance(mesh, Mesh):
        raise TypeError(f"{function}: mesh must be a jax.sharding.Mesh, not {type(mesh).__name__}.")
    names = mesh.axis_names
    if axis is None and len(names) == 1:
        axis = names[0]
    if axis is None or axis not in names:
        raise ValueError(
            f"{function}: axis={axis!r} is no axis of the mesh {dict(mesh.shape)}; name one of {names}."
        )
    if backend not in FOR_A_MESH:
        raise ValueError(
            f'{function}: backend="pmap" has no mesh: jax.pmap maps over all devices that it is given. '
            "Leave backend out."
        )
    if AxisType.Manual in mesh.axis_types:
        raise ValueError(f"{function}: the mesh has Manual axes: it is one that jax.shard_map is inside of.")
    if REPLICA in names and axis != REPLICA:
        raise ValueError(
            f"{function}: the mesh has an axis {REPLICA!r}, which has to be the data axis. Rename it."
        )
    return _over(_own_part(mesh, axis, function), axis, dim)


def _own_part(mesh: Mesh, axis: str, function: str) -> Mesh:
    """Return this process's devices of a mesh as a mesh: whole replicas."""
    if not mesh.is_multi_process:
        return mesh
    if function != "DistributedDataParallel":
        raise ValueError(
            f"{function}: the mesh has devices of several processes. DistributedDataParallel takes such a "
            "mesh; every process brings its own rows."
        )
    is_local = np.vectorize(lambda device: device.process_index == jax.process_index())(mesh.devices)
    across = tuple(i for i, name in enumerate(mesh.axis_names) if name != axis)
    if not np.array_equal(is_local.any(across), is_local.all(across)):
        raise ValueError(
            f"{function}: a replica on axis {axis!r} of the mesh {dict(mesh.shape)} has devices of several "
            "processes. Order the mesh's devices so that only the data axis goes from process to process."
        )
    devices = np.compress(is_local.any(across), mesh.devices, mesh.axis_names.index(axis))
    return Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types)


def _over(mesh: Mesh, axis: str, dim: int) -> MeshPlacement:
    # The first N are the replicas' first devices.
    ordered = np.moveaxis(mesh.devices, mesh.axis_names.index(axis), -1).reshape(-1)
    return MeshPlacement(tuple(ordered), dim, ordered[0], mesh, axis)
