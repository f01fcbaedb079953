"""Compile for absent GPUs: descriptions of devices on which nothing runs.

XLA's compiler for NVIDIA GPUs needs neither a GPU nor a driver, only the figures of a card. torch's nearest
counterpart is the meta device, which has shapes but no program.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, overload

import jax

from .._tree import is_staged
from .._upstream.gpu_compiler import compile_only, gpu_topology
from ..errors import DeviceError
from . import devices as _devices
from .visible import CARDS

MOST = 2**16
"""The most devices of one topology, so that a typing error does not fill the memory."""


@dataclasses.dataclass(frozen=True)
class Topology(Sequence):
    """A sequence of absent GPUs, accepted wherever jaxpar accepts a list of devices. Nothing runs on them.

    Attributes:
      card: the card's name, as passed to `topology`. hosts: the number of hosts.
      devices: all hosts' devices, host by host; a device's `process_index` is the index of its host.

    ```python
    gpus = jaxpar.topology("a100-80", hosts=2)
    len(gpus), gpus[9].process_index   # 16, 1
    ```
    """

    card: str
    hosts: int
    devices: tuple[jax.Device, ...]

    def __len__(self) -> int:
        return len(self.devices)

    @overload
    def __getitem__(self, i: int) -> jax.Device: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[jax.Device, ...]: ...
    def __getitem__(self, i: int | slice) -> Any:
        return self.devices[i]

    def __repr__(self) -> str:
        return f"topology({self.card!r}, hosts={self.hosts}, devices={len(self) // self.hosts})"

    def __reduce__(self) -> tuple[Any, ...]:
        # jax.Device cannot be pickled, but the same arguments give the same devices.
        rebuild = functools.partial(topology, hosts=self.hosts, devices=len(self) // self.hosts)
        return rebuild, (self.card,)


def topology(card: str, *, hosts: int = 1, devices: int = 8) -> Topology:
    """Return absent GPUs, for programs that are compiled and not run.

    ```python
    gpus = jaxpar.topology("h100", hosts=2)
    net = jaxpar.DataParallel(net, device_ids=gpus)
    ```

    Args:
      card: `"h100"`, `"h200"`, `"a100-80"`, `"b200"`, ...; the error for an unknown name lists all.
      hosts: the number of hosts. devices: the number of GPUs per host.

    Returns:
      A Topology. Equal arguments give the same devices.

    Raises:
      ImportError: XLA's compiler for GPUs is not installed.
      DeviceError: an unknown card; a number that is not positive. Also later, where a program would run on
        such a device or an array would be placed on one.

    This starts JAX, so call `virtual_devices` and `init_process_group` first.

    torch counterpart: none. JAX's is `jax.experimental.topologies.get_topology_desc`.
    """
    if card not in CARDS:
        raise DeviceError(f"topology: {card!r} is not a card; there are {', '.join(CARDS)}.")
    for name, n in (("hosts", hosts), ("devices", devices)):
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise DeviceError(f"topology: {name} must be a positive integer, not {n!r}.")
    if hosts * devices > MOST:
        raise DeviceError(f"topology: {hosts} hosts of {devices} devices are more than {MOST} devices.")
    return _made(card, hosts, devices)


# Cached, because JAX treats the devices of two descriptions as different even if they are equal.
@functools.cache
def _made(card: str, hosts: int, devices: int) -> Topology:
    # The first number is the count of slices, as on TPUs; a cluster of GPUs is one slice.
    gpus = gpu_topology(f"1x{hosts}x{devices}", CARDS[card].target(), _devices.devices)
    if gpus is None:
        raise ImportError(
            "topology: XLA's compiler for GPUs is not installed (it needs no GPU and no driver): "
            'pip install "jaxpar[gpu-compiler]".'
        )
    return Topology(card, hosts, gpus)


def of_topology(devices: Iterable[Any]) -> bool:
    return any(isinstance(d, jax.Device) and compile_only(d) for d in devices)


def refuse_topology(devices: Sequence[jax.Device], function: str) -> None:
    if not of_topology(devices[:1]):
        return
    first, last = (_devices.name(d) for d in (devices[0], devices[-1]))
    which = first if len(devices) == 1 else f"{first} to {last}"
    raise DeviceError(
        f"{function}: {which} ({devices[0].device_kind}) are devices of a topology: programs are compiled "
        "for them and nothing runs there. Use step.lower(*shapes).compile(), or devices that are there: "
        "jaxpar.devices()."
    )


def compiler_options(devices: Sequence[jax.Device]) -> tuple[tuple[str, str], ...]:
    # Autotuning would run kernels on a GPU. Inside a user's `jax.jit` the option must be left out, because
    # JAX accepts options for the outermost program only.
    return (("xla_gpu_autotune_level", "0"),) if of_topology(devices[:1]) and not is_staged() else ()
