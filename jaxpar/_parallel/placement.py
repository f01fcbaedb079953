"""Placement: which devices hold the replicas, which axis is split, where results go."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .._arguments import warn
from .._devices import devices as _devices
from .._devices.topology import of_topology
from .._typing import REPLICA, DeviceLike
from ..errors import DeviceError

AXES = 64
"""The largest number of axes that torch's and NumPy's arrays have."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """Which devices, which axis, where results go.

    >>> import jaxpar
    >>> placement = jaxpar.Placement(tuple(jaxpar.devices()[:1]), dim=1)
    >>> placement.N, placement.dim, placement.device_ids
    (1, 1, [0])

    Attributes:
      devices: the N devices in replica order; none at all means pass-through.
      dim: the batch dimension of every input and output; negative counts from the end.
      output_device: where outputs are gathered outside of `jax.jit`.

    torch counterpart: `DataParallel`'s `device_ids`, `dim`, `output_device` (docs/semantics.md section 1.1).
    """

    devices: tuple[jax.Device, ...]
    dim: int = 0
    output_device: jax.Device | None = None

    def __post_init__(self) -> None:
        for d in self.devices:
            if not isinstance(d, jax.Device):  # a mesh of anything else ends the process
                raise TypeError(
                    f"Placement: devices must be jax.Devices, not {d!r}; write jaxpar.Placement(tuple("
                    "jaxpar.devices()[:2])), or give the numbers to DataParallel: device_ids=[0, 1]."
                )

    @property
    def N(self) -> int:
        return len(self.devices)

    @property
    def outer_mesh(self) -> Mesh | None:
        """The user's mesh, of which the replicas are an axis, or None."""
        return getattr(self, "user_mesh", None)

    @property
    def positions(self) -> np.ndarray:
        """The devices of each replica, [N, ...]."""
        return np.array(self.devices)

    def extended(self, positions: Any) -> Placement:
        """Return this placement over more replicas; `positions` is an array of devices, [N, ...]."""
        return Placement(tuple(positions), self.dim, self.devices[0])

    def own_part(self, x: Any, name: str, function: str) -> Any:
        del name, function
        return x

    def for_value(self, x: Any) -> NamedSharding:
        """Return the sharding of a value that all replicas hold."""
        del x
        return self.replicated

    @functools.cached_property
    def device_ids(self) -> list[Any]:
        """The devices as positions in `jaxpar.devices()`, or as text."""
        devices = _devices.devices()
        return [devices.index(d) if d in devices else _devices.name(d) for d in self.devices]

    @functools.cached_property
    def of_topology(self) -> bool:
        """Whether programs cannot run on the devices, see `jaxpar.topology`."""
        return of_topology(self.devices[:1])

    @functools.cached_property
    def mesh(self) -> Mesh:
        # Explicit axes, jax.make_mesh's default, would make x[:3] or x.T @ x raise in users' code.
        return Mesh(np.array(self.devices), (REPLICA,), axis_types=(AxisType.Auto,))

    @functools.cached_property
    def replicated(self) -> NamedSharding:
        """The sharding of an array that every device holds completely."""
        return NamedSharding(self.mesh, PartitionSpec())

    @functools.cached_property
    def stacked(self) -> NamedSharding:
        """Device i holds entry i of the leading axis, which has length N."""
        return NamedSharding(self.mesh, PartitionSpec(REPLICA))

    def __deepcopy__(self, memo: object) -> Placement:
        return self  # frozen, and jax.Device cannot be copied

    def __reduce__(self):
        # jax.Device cannot be pickled; its name can, and means the same device on the same host.
        names = [_devices.name(d) for d in self.devices]
        output = None if self.output_device is None else _devices.name(self.output_device)
        return _from_names, (names, self.dim, output)


def place(
    device_ids: Iterable[DeviceLike] | Placement | None = None,
    output_device: DeviceLike | None = None,
    dim: int = 0,
    *,
    function: str = "DataParallel",
    one_is_none: bool = True,
) -> Placement:
    """Return the placement that a user described; without devices for one CPU (docs/semantics.md row 2)."""
    if isinstance(device_ids, Placement):
        if output_device is not None or dim != 0:
            raise TypeError(
                f"{function}: device_ids is a Placement, which brings its own output_device and dim; give "
                "either the Placement or the arguments."
            )
        return device_ids
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise TypeError(f"{function}: dim must be an int, not {dim!r}.")
    if not -AXES <= dim < AXES:  # torch's error, which it raises when it is called
        bounds = f"expected to be in range of [{-AXES}, {AXES - 1}], but got {dim}"
        raise IndexError(f"{function}: Dimension out of range ({bounds})")
    if isinstance(device_ids, (int, str)):
        raise TypeError(
            f"{function}: device_ids must be a list of devices, not {device_ids!r}; write [{device_ids!r}]."
        )
    specs = _devices.devices() if device_ids is None else list(device_ids)
    if one_is_none and not of_topology(specs[:1]) and _devices.device_count() == 0:
        return Placement((), dim)
    if not specs:
        raise DeviceError(f"{function}: device_ids is empty; leave it out to use all devices.")
    return _place(tuple(specs), output_device, dim, function)


def over_devices(x: Any, placement: Placement) -> NamedSharding:
    """Return the sharding of an unsplit batch: split if it divides evenly, or else on all devices."""
    # A NamedSharding requires equal pieces; an uneven batch goes to all devices and is split in the program.
    dim = placement.dim
    if not -x.ndim <= dim < x.ndim or not x.shape[dim] or x.shape[dim] % placement.N:
        return placement.replicated
    return NamedSharding(placement.mesh, PartitionSpec(*[None] * (dim % x.ndim), REPLICA))


def output(spec: DeviceLike | None, default: jax.Device) -> jax.Device:
    if spec is None:
        return default
    if spec == -1:
        warn(
            "Using -1 to represent CPU tensor is deprecated. Please use a device object or string "
            'instead, e.g., "cpu".',
            FutureWarning,
        )
        return _devices.device("cpu")
    return _devices.device(spec)


def _place(
    specs: tuple[DeviceLike, ...], output_device: DeviceLike | None, dim: int, function: str
) -> Placement:
    devices = []
    for spec in specs:
        d = _devices.device(spec)
        if d in devices:
            raise DeviceError(
                f"{function}: {spec!r} given twice in device_ids={list(specs)}; every replica "
                "needs its own device."
            )
        devices.append(d)
    if len({d.platform for d in devices}) > 1:
        names = ", ".join(_devices.name(d) for d in devices)
        raise DeviceError(
            f"{function}: device_ids mix kinds of devices ({names}); replicas must be of one kind."
        )
    return _shared(tuple(devices), dim, output(output_device, devices[0]))


@functools.cache
def _shared(devices: tuple[jax.Device, ...], dim: int, output_device: jax.Device) -> Placement:
    """Return one object for equal placements, so that meshes are built and compared once."""
    return Placement(devices, dim, output_device)


def _from_names(names: list[str], dim: int, output_device: str | None) -> Placement:
    devices = tuple(_devices.device(n) for n in names)
    return Placement(devices, dim, None if output_device is None else _devices.device(output_device))
