"""Warn if CUDA_VISIBLE_DEVICES was changed too late.

The driver reads the variable once, when JAX's backend starts. A script that sets it after its first array
continues with the same devices, without a message, as with torch.cuda. If the backend runs already, the
present value is assumed, because scripts set the variable in their first lines, unless the backend sees more
GPUs than it allows. Linux keeps the initial value in /proc/self/environ, unaffected by `os.environ`.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, NamedTuple

from .._arguments import warn

VARIABLE = "CUDA_VISIBLE_DEVICES"
START = Path("/proc/self/environ")


class Change(NamedTuple):
    """The variable's value when the backend started and now; None where it is not set."""

    then: str | None
    now: str | None


class _Memory:
    """The state of this process, in one object so that a test can replace it."""

    then: str | None = None
    recorded = False
    warned: Change | None = None


_memory = _Memory()


def remember() -> None:
    """Store the value with which the backend starts, or has started; call it before the devices are read."""
    if not _memory.recorded:
        _memory.then, _memory.recorded = _value_at_start(), True


def in_force() -> str | None:
    return _memory.then if _memory.recorded else os.environ.get(VARIABLE)


def changed_visible_devices() -> Change | None:
    now = os.environ.get(VARIABLE)
    return None if now == in_force() else Change(in_force(), now)


def check() -> None:
    change = changed_visible_devices()
    # Every call of `devices` comes here, and one warning per change is enough.
    if change and change != _memory.warned:
        _memory.warned = change
        then, now = ("unset" if value is None else repr(value) for value in change)
        warn(
            f"{VARIABLE} is {now} now and was {then} when JAX started. The devices of a running process do "
            "not change, so this has no effect. Set it before JAX is used for the first time: outside of the "
            f"script ({VARIABLE}={change.now or '0'} python script.py), or in its first lines."
        )


def _value_at_start() -> str | None:
    from .._upstream import backends_are_initialized

    now = os.environ.get(VARIABLE)
    if not backends_are_initialized():
        return now
    original, readable = _original()
    return original if readable and original != now and _sees_more_than(now) else now


def _original() -> tuple[str | None, bool]:
    try:
        entries = START.read_bytes().split(b"\0")
    except OSError:
        return None, False
    prefix = f"{VARIABLE}=".encode()
    values = [os.fsdecode(entry[len(prefix) :]) for entry in entries if entry.startswith(prefix)]
    return (values[0] if values else None), True


def _sees_more_than(value: str | None) -> bool:
    import jax

    gpus = sum(d.platform == "gpu" for d in jax.local_devices())
    return value is not None and gpus > _allowed(value)


def _allowed(value: str) -> int:
    # The driver stops reading at the first entry that is empty or negative.
    invalid = [not entry.strip() or entry.strip().startswith("-") for entry in value.split(",")]
    return [*invalid, True].index(True)


# The figures of NVIDIA cards that XLA's compiler needs. They decide how work is split into blocks and
# ordered, and do not change results. docs/topology.md names the sources.
@dataclasses.dataclass(frozen=True)
class Card:
    """One kind of GPU, in the data sheet's units.

    Attributes:
      cores, fpus, threads: streaming multiprocessors, float32 units per core, resident threads per core.
      clock: in GHz. memory: usable bytes.
      shared_kib: KiB of shared memory per core, and the largest part of it that one block may use.
    """

    kind: str
    capability: tuple[int, int]
    cores: int
    fpus: int
    threads: int
    clock: float
    gigabytes_per_second: float
    memory: int
    cache_mib: float
    shared_kib: tuple[int, int]
    accelerated: bool = False

    def target(self) -> str:
        """Return a GpuTargetConfigProto in text form, which XLA's compiler reads."""
        major, minor = self.capability
        # The numbers from threads_per_warp on are the limits of every card since Volta.
        feature = "ACCELERATED_FEATURES" if self.accelerated else "NONE"
        return f"""
gpu_device_info {{
  threads_per_warp: 32
  threads_per_block_limit: 1024
  shared_memory_per_block: 49152
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {feature} }}
  core_count: {self.cores}
  fpus_per_core: {self.fpus}
  threads_per_core_limit: {self.threads}
  clock_rate_ghz: {self.clock}
  memory_bandwidth: {round(self.gigabytes_per_second * 1e9)}
  device_memory_size: {self.memory}
  l2_cache_size: {round(self.cache_mib * 2**20)}
  shared_memory_per_core: {self.shared_kib[0] * 1024}
  shared_memory_per_block_optin: {self.shared_kib[1] * 1024}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{self.kind}"
"""


RTX_PRO = "NVIDIA RTX PRO 6000 Blackwell"
HOPPER = (228, 227)  # and Blackwell
_CARDS: dict[str, tuple[Any, ...]] = {
    "v100": ("Tesla V100-SXM2-16GB", (7, 0), 80, 64, 2048, 1.53, 898.048, 16935682048, 6, (96, 96)),
    "a100-40": ("NVIDIA A100-SXM4-40GB", (8, 0), 108, 64, 2048, 1.41, 1555.2, 42331013120, 40, (164, 163)),
    "a100-80": ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 2048, 1.41, 2039.04, 85100068864, 40, (164, 163)),
    "a6000": ("NVIDIA RTX A6000", (8, 6), 84, 128, 1536, 1.8, 768.096, 51041271808, 6, (100, 99)),
    "h100": ("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 2048, 1.98, 3352.32, 84942979072, 50, HOPPER, True),
    "h200": ("NVIDIA H200 141GB HBM3e", (9, 0), 132, 128, 2048, 1.98, 4800, 151397597184, 50, HOPPER, True),
    "b200": ("NVIDIA B200", (10, 0), 148, 128, 2048, 1.965, 7672.32, 191514411008, 126.5, HOPPER, True),
    "gb200": ("NVIDIA GB200", (10, 0), 152, 128, 2048, 2.062, 7928.064, 197897748480, 129.25, HOPPER, True),
    "b300": ("NVIDIA B300", (10, 3), 158, 128, 2048, 1.965, 7936, 297021865984, 129.25, HOPPER),
    "gb300": ("NVIDIA GB300", (10, 3), 152, 128, 2048, 2.07, 7928.064, 297021079552, 129.25, HOPPER, True),
    "rtx6000pro": (RTX_PRO, (12, 0), 188, 128, 1536, 2.6, 1792, 96 << 30, 128, (128, 99)),
}
CARDS = {name: Card(*figures) for name, figures in _CARDS.items()}
"""Cards by the names that `jaxpar.topology` accepts."""


def card_of(kind: str) -> str:
    """Return the card with a `jax.Device.device_kind`."""
    return next(card for card, figures in CARDS.items() if figures.kind == kind)
