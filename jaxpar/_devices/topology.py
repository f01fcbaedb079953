"""topology: GPUs that are not there, to compile for.

XLA's compiler for NVIDIA GPUs needs no GPU and no driver, only the figures of a card. What it makes of a
training step is the program that would run: its memory, its collectives, their order. On a laptop this tells
whether a step fits into a card and what 1,024 of them would exchange.

torch has no counterpart; the nearest are its meta device, which has shapes and no program, and JAX's
`jax.experimental.topologies`, on which this stands.
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
from .cards import CARDS

MOST = 2**16
"""Devices of one topology; a typing error should not fill the memory with them."""


@dataclasses.dataclass(frozen=True)
class Topology(Sequence):
    """GPUs that are not there: a sequence of devices that programs are compiled for.

    It stands wherever jaxpar takes a list of devices. Nothing runs on them.

    Attributes:
      card: the name that `topology` was given.
      hosts: how many hosts there are.
      devices: all hosts' devices, host by host; `process_index` says which host a device belongs to.
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
        # jax.Device cannot be pickled; the same topology can be asked for again.
        return _again, (self.card, self.hosts, len(self) // self.hosts)


def topology(card: str, *, hosts: int = 1, devices: int = 8) -> Topology:
    """GPUs that are not there, for programs that are compiled and not run.

    ```python
    gpus = jaxpar.topology("h100", hosts=2)
    net = jaxpar.DataParallel(net, device_ids=gpus)
    ```

    Args:
      card: `"h100"`, `"h200"`, `"a100-80"`, `"b200"`, ...; an unknown one raises, and is told all names.
      hosts: how many hosts.
      devices: how many GPUs each host has.

    Returns:
      A Topology. Equal arguments give the same devices.

    Raises:
      ImportError: XLA's compiler for GPUs is not installed.
      DeviceError: an unknown card; a number that is not positive.
      Where such a device is used: DeviceError, when anything is to run on it or lie there.

    Starts JAX, so `virtual_devices` and `init_process_group` come before it.

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


@functools.cache
def _made(card: str, hosts: int, devices: int) -> Topology:
    """One object for equal arguments: JAX's devices of another description are other devices."""
    gpus = gpu_topology(f"1x{hosts}x{devices}", CARDS[card].target(), _devices.devices)
    if gpus is None:
        raise ImportError(
            "topology: XLA's compiler for GPUs is not installed (it needs no GPU and no driver): "
            'pip install "jaxpar[gpu-compiler]".'
        )
    return Topology(card, hosts, gpus)


def _again(card: str, hosts: int, devices: int) -> Topology:
    return topology(card, hosts=hosts, devices=devices)


def of_topology(devices: Iterable[Any]) -> bool:
    """Whether any of them is a topology's, so that nothing can run there."""
    return any(isinstance(d, jax.Device) and compile_only(d) for d in devices)


def refuse_topology(devices: Sequence[jax.Device], function: str) -> None:
    """Raises DeviceError if they are a topology's."""
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
    """What XLA must be told for these: it tries kernels on a GPU, if it is not told that there is none.

    Inside of a user's `jax.jit` nothing, because it takes options with the outermost program only.
    """
    return (("xla_gpu_autotune_level", "0"),) if of_topology(devices[:1]) and not is_staged() else ()
