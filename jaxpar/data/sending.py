"""Send a batch: each device gets its rows directly from the host, in DataParallel's layout.

JAX has no array of uneven pieces, so rows that do not divide evenly go to all devices whole, and each device
takes its piece from its own copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from .._devices import devices as _devices
from .._devices.context import brought
from .._devices.topology import refuse_topology
from .._parallel.placement import Placement, place
from .._parallel.replicated import leaf_marks
from .._tree import LazyPaths, check_leaves, is_real
from .._typing import REPLICA, DeviceLike, PyTree
from ._collate import is_array_like

Send = Callable[[PyTree], PyTree]
Put = Callable[[jax.Array | np.ndarray, bool], jax.Array]


def sender(placement: Placement | Iterable[DeviceLike] | DeviceLike | None, checked: bool = False) -> Send:
    """Return a function that copies a batch to the devices; `checked` if the leaves are validated."""
    if isinstance(placement, (str, int, jax.Device)):
        return _to_one(_devices.device(placement), checked)
    where = place(placement, function="prefetch")
    if where.of_topology:
        return lambda batch: refuse_topology(where.devices, "prefetch")
    if not where.devices:
        first = jax.devices()[0]
        return functools.partial(_send, first, checked, lambda x, mark: jax.device_put(_unshared(x, first)))
    if where.N == 1 and where.outer_mesh is None:
        return _to_one(where.devices[0], checked)
    along = functools.cache(lambda axis: NamedSharding(where.mesh, PartitionSpec(*[None] * axis, REPLICA)))

    def put(x: jax.Array | np.ndarray, mark: bool) -> jax.Array:
        if mark:
            return _whole(x, where.replicated, where.devices)
        return _spread(x, where, along)

    return functools.partial(_send, where.devices[0], checked, put)


def _to_one(device: jax.Device, checked: bool) -> Send:
    return functools.partial(_send, device, checked, lambda x, mark: _whole(x, device, [device]))


def _send(device: jax.Device, checked: bool, put: Put, batch: PyTree) -> PyTree:
    """Send all leaves and wait for the copies, so that the host's arrays may be overwritten."""
    leaves, form = jax.tree.flatten(batch)
    if not checked:
        leaves = [_host_array(leaf) for leaf in leaves]
        check_leaves(leaves, LazyPaths(("batch", batch)), "prefetch")
    sent = [_put(leaf, mark, put) for leaf, mark in zip(leaves, leaf_marks(batch), strict=True)]
    # CPU devices got copies made beforehand, and their threads are busy with earlier steps.
    if device.platform != "cpu":
        moved = zip(sent, leaves, strict=True)
        jax.block_until_ready([x for x, leaf in moved if is_real(x) and x is not leaf])
    return jax.tree.unflatten(form, sent)


def _host_array(leaf: PyTree) -> PyTree:
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic)) or not is_array_like(leaf):
        return leaf
    return np.asarray(leaf)


def _put(leaf: PyTree, mark: bool, put: Put) -> PyTree:
    if isinstance(leaf, jax.Array):
        return put(leaf, mark)
    if not isinstance(leaf, np.ndarray):
        return leaf
    return put(leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False), mark)


def _spread(
    x: jax.Array | np.ndarray, placement: Placement, along: Callable[[int], NamedSharding]
) -> jax.Array:
    dim, N = placement.dim, placement.N
    axis = dim % x.ndim if -x.ndim <= dim < x.ndim else None
    rows = 0 if axis is None else x.shape[axis]
    if axis is None or not rows or rows % N:
        return _whole(x, placement.replicated, placement.devices)
    sharding = along(axis)
    if isinstance(x, jax.Array):
        if x.sharding.is_equivalent_to(sharding, x.ndim):
            return brought(x, sharding.mesh, lambda: sharding, axis)
        if not _readable(x):
            return jax.device_put(x, sharding)
        x = np.asarray(x)
    device = placement.devices[0]
    # This takes half the time of device_put with the same sharding.
    return jax.make_array_from_callback(x.shape, sharding, lambda index: _unshared(x[index], device))


def _whole(
    x: jax.Array | np.ndarray, where: jax.Device | NamedSharding, devices: Iterable[jax.Device]
) -> jax.Array:
    if isinstance(x, jax.Array):
        if x.devices() == set(devices) and x.sharding.is_fully_replicated:
            return brought(x, where.mesh, lambda: where) if isinstance(where, NamedSharding) else x
        if not _readable(x):
            return jax.device_put(x, where)
        x = np.asarray(x)
    return jax.device_put(_unshared(x, next(iter(devices))), where)


def _readable(x: jax.Array) -> bool:
    return not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended) and x.is_fully_addressable


def _unshared(x: jax.Array | np.ndarray, device: jax.Device) -> jax.Array | np.ndarray:
    """Copy x for a CPU device, which would share memory with an array that the caller may overwrite."""
    return np.array(x) if isinstance(x, np.ndarray) and device.platform == "cpu" else x
