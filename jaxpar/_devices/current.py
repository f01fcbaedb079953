"""The current device: torch's names for `jax.default_device`, which is per thread as in torch.cuda."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from .._typing import DeviceLike
from .._upstream import address
from ..errors import DeviceError
from . import devices as _devices


def current_device() -> int:
    """Return the current device's index in `devices()`.

    >>> import jaxpar
    >>> jaxpar.current_device()
    0

    Raises:
      DeviceError: JAX's default device is not in the list (the CPU, on a host with accelerators).

    torch counterpart: `torch.cuda.current_device` (docs/semantics.md row P4).
    """
    # `jax.default_device` may name any device, also one that integers do not count.
    now = _devices.device()
    indexed = _devices.devices()
    if now not in indexed:
        raise DeviceError(
            f"current_device: the current device is {_devices.name(now)}, which has no index among "
            f"{_devices.name(indexed[0])} to {_devices.name(indexed[-1])}; call jaxpar.set_device(0)."
        )
    return indexed.index(now)


class set_device:
    """Make `device` the current one in this thread, permanently or for a `with` block.

    ```python
    jaxpar.set_device(1)           # from this line on
    with jaxpar.set_device(2):     # device 1 is current again afterwards, also after an exception
        x = jnp.ones(3)            # on device 2
    ```

    >>> import jaxpar
    >>> with jaxpar.set_device("cpu:0") as device:
    ...     device.platform
    'cpu'

    Operations on arrays that are committed to a device still run there.

    Raises:
      DeviceError: no such device. (torch ignores negative numbers; docs/semantics.md row P7.)

    torch counterpart: `torch.cuda.set_device` and the context manager `torch.cuda.device` (rows P7, P8).
    """

    def __init__(self, device: DeviceLike):
        self.device = _devices.device(device)
        self._context = jax.default_device(self.device)
        # Entered now and not in `__enter__`, so that a plain call, without `with`, takes effect.
        self._context.__enter__()

    def __enter__(self) -> jax.Device:
        return self.device

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """A device's properties; None where the backend does not report one.

    Attributes:
      name: the kind of device, such as `NVIDIA H100`.
      platform: `cpu`, `gpu` or `tpu`.
      index: the index in `devices()`, None if the device is not in that list.
      process_index: the process that owns the device.
      total_memory: bytes that JAX may use.
      multi_processor_count: the number of cores, as the backend counts them.
      compute_capability: NVIDIA's version, such as `9.0`.

    >>> import jaxpar
    >>> properties = jaxpar.get_device_properties("cpu:0")
    >>> properties.platform, properties.process_index, properties.compute_capability
    ('cpu', 0, None)
    """

    name: str
    index: int | None
    platform: str
    process_index: int
    total_memory: int | None
    multi_processor_count: int | None
    compute_capability: str | None


def get_device_name(device: DeviceLike | None = None) -> str:
    """Return a device's kind, the current one's by default. torch: `torch.cuda.get_device_name`.

    >>> import jaxpar
    >>> jaxpar.get_device_name("cpu:0")
    'cpu'
    """
    return _devices.device(device).device_kind


def get_device_properties(device: DeviceLike | None = None) -> DeviceProperties:
    """Return a device's properties, the current one's by default.

    >>> import jaxpar
    >>> jaxpar.get_device_properties("cpu:0").name
    'cpu'

    torch counterpart: `torch.cuda.get_device_properties` (docs/semantics.md row P6).
    """
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
    """Wait until everything dispatched to a device, by default the current one, is done.

    >>> import jaxpar
    >>> jaxpar.synchronize("cpu")

    torch counterpart: `torch.cuda.synchronize`.
    """
    d = _devices.device(device)
    # JAX has no barrier for a device, but whatever was dispatched there ends in an array that is alive.
    jax.block_until_ready([x for x in jax.live_arrays() if not x.is_deleted() and d in x.devices()])


def memory_stats(device: DeviceLike | None = None) -> dict[str, int | None]:
    """Return the bytes on a device: `bytes_in_use`, `peak_bytes_in_use`, `bytes_limit`.

    The backend's allocator counts them, except on CPU devices: there `bytes_in_use` is the sum over all live
    arrays, and the other two are None.

    >>> import jaxpar
    >>> list(jaxpar.memory_stats())
    ['bytes_in_use', 'peak_bytes_in_use', 'bytes_limit']

    torch counterpart: `torch.cuda.memory_allocated`, `max_memory_allocated`, `mem_get_info`.
    """
    d = _devices.device(device)
    statistics = d.memory_stats()
    keys = ("bytes_in_use", "peak_bytes_in_use", "bytes_limit")
    if statistics:
        return {key: statistics.get(key) for key in keys}
    alive = (s for x in jax.live_arrays() if not x.is_deleted() for s in x.addressable_shards)
    # Reading `shard.data` creates an array that is alive from then on, so each buffer counts only once.
    buffers = {address(s.data): s.data.nbytes for s in alive if s.device == d}
    return dict.fromkeys(keys, None) | {"bytes_in_use": sum(buffers.values())}
