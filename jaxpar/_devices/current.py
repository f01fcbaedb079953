"""The current device: where arrays that name no device are made.

torch.cuda keeps an index for each thread. JAX has `jax.default_device`, a context manager that holds for a
thread too. These are torch's names for it, so code written with one sees what the other has set.
"""

from __future__ import annotations

import dataclasses
from types import TracebackType

import jax

from .._typing import DeviceLike
from .._upstream import address
from ..errors import DeviceError
from . import devices as _devices


def current_device() -> int:
    """The current device as a position in `devices()`.

    Raises:
      DeviceError: JAX's default device is not among them (the CPU, on a host with accelerators).

    torch counterpart: `torch.cuda.current_device` (docs/semantics.md row P4).
    """
    now = _devices.device()
    indexed = _devices.devices()
    if now not in indexed:
        raise DeviceError(
            f"current_device: the current device is {_devices.name(now)}, which has no index among "
            f"{_devices.name(indexed[0])} to {_devices.name(indexed[-1])}; call jaxpar.set_device(0)."
        )
    return indexed.index(now)


class set_device:
    """Makes `device` the current one, for good or for a `with` block.

    ```python
    jaxpar.set_device(1)           # from here on, in this thread
    with jaxpar.set_device(2):     # and back to 1 at the end, whatever happens inside
        x = jnp.ones(3)            # on device 2
    ```

    Operations on arrays that are committed to a device still run there.

    Raises:
      DeviceError: no such device. (torch ignores negative numbers here; docs/semantics.md row P7.)

    torch counterpart: `torch.cuda.set_device` and the context manager `torch.cuda.device`
    (docs/semantics.md rows P7, P8).
    """

    def __init__(self, device: DeviceLike):
        self.device = _devices.device(device)
        self._context = jax.default_device(self.device)
        self._context.__enter__()  # here and not in `__enter__`: as a plain call it holds from now on

    def __enter__(self) -> jax.Device:
        return self.device

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.__exit__(kind, error, trace)


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """What is known about a device; None where the backend does not say.

    Attributes:
      name: the kind of device, such as `NVIDIA H100` or `cpu`.
      index: its position in `devices()`, None if it is not in that list.
      platform: `cpu`, `gpu` or `tpu`.
      process_index: the process that owns it.
      total_memory: bytes that JAX may use on it.
      multi_processor_count: its cores, as the backend counts them.
      compute_capability: NVIDIA's, such as `9.0`.
    """

    name: str
    index: int | None
    platform: str
    process_index: int
    total_memory: int | None
    multi_processor_count: int | None
    compute_capability: str | None


def get_device_name(device: DeviceLike | None = None) -> str:
    """The kind of a device, by default of the current one. torch: `torch.cuda.get_device_name`."""
    return _devices.device(device).device_kind


def get_device_properties(device: DeviceLike | None = None) -> DeviceProperties:
    """What is known about a device. torch: `torch.cuda.get_device_properties` (docs/semantics.md row P6)."""
    d = _devices.device(device)
    indexed = _devices.devices()
    return DeviceProperties(
        name=d.device_kind,
        index=indexed.index(d) if d in indexed else None,
        platform=d.platform,
        process_index=d.process_index,
        total_memory=(d.memory_stats() or {}).get("bytes_limit"),
        multi_processor_count=getattr(d, "core_count", None),
        compute_capability=getattr(d, "compute_capability", None),
    )


def synchronize(device: DeviceLike | None = None) -> None:
    """Waits until everything that was dispatched to a device, or to the current one, is done.

    JAX has no such call. Waiting for every array that lives on the device comes to the same.

    torch counterpart: `torch.cuda.synchronize`.
    """
    d = _devices.device(device)
    jax.block_until_ready([x for x in jax.live_arrays() if not x.is_deleted() and d in x.devices()])


def memory_stats(device: DeviceLike | None = None) -> dict[str, int | None]:
    """Bytes on a device: `bytes_in_use`, `peak_bytes_in_use`, `bytes_limit`.

    The backend's allocator counts them, except on CPU devices: there `bytes_in_use` is the sum over the
    arrays that are alive, and the other two are None.

    torch counterpart: `torch.cuda.memory_allocated`, `max_memory_allocated`, `mem_get_info`.
    """
    d = _devices.device(device)
    statistics = d.memory_stats()
    keys = ("bytes_in_use", "peak_bytes_in_use", "bytes_limit")
    if statistics:
        return {key: statistics.get(key) for key in keys}
    alive = (s for x in jax.live_arrays() if not x.is_deleted() for s in x.addressable_shards)
    # Looking at a shard makes an array of it, which is alive from then on. So each buffer counts once.
    buffers = {address(s.data): s.data.nbytes for s in alive if s.device == d}
    return dict.fromkeys(keys, None) | {"bytes_in_use": sum(buffers.values())}
