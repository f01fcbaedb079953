"""The figures of NVIDIA cards that XLA's compiler needs to compile for an absent GPU.

The compiler reads them to split work into blocks and to order it: the number of cores, the limits of a block,
the speed of memory. They do not change results. docs/topology.md names the sources.

torch has no counterpart: `torch.cuda.get_device_properties` reads them from the driver.
"""

from __future__ import annotations

import dataclasses

KIB, MIB, GB = 2**10, 2**20, 10**9


@dataclasses.dataclass(frozen=True)
class Card:
    """One kind of GPU.

    Attributes:
      kind: `jax.Device.device_kind`.
      capability: CUDA's compute capability; accelerated: whether it has instructions of its own (`sm_90a`).
      cores: streaming multiprocessors; fpus: float32 units per core; threads: resident threads per core.
      clock: in GHz.
      bandwidth: bytes per second between the card and its memory.
      memory: usable bytes; cache: bytes of L2.
      shared: bytes of shared memory per core; block: the largest part that one block may use.
    """

    kind: str
    capability: tuple[int, int]
    cores: int
    fpus: int
    threads: int
    clock: float
    bandwidth: int
    memory: int
    cache: int
    shared: int
    block: int
    accelerated: bool = False

    def target(self) -> str:
        """Return a GpuTargetConfigProto in text form, which XLA's compiler reads."""
        major, minor = self.capability
        feature = "ACCELERATED_FEATURES" if self.accelerated else "NONE"
        return f"""
gpu_device_info {{
  {LIMITS}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {feature} }}
  core_count: {self.cores}
  fpus_per_core: {self.fpus}
  threads_per_core_limit: {self.threads}
  clock_rate_ghz: {self.clock}
  memory_bandwidth: {self.bandwidth}
  device_memory_size: {self.memory}
  l2_cache_size: {self.cache}
  shared_memory_per_core: {self.shared}
  shared_memory_per_block_optin: {self.block}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{self.kind}"
"""


LIMITS = """threads_per_warp: 32
  threads_per_block_limit: 1024
  shared_memory_per_block: 49152
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535"""
"""Limits of every card since Volta."""


def _card(
    kind: str,
    capability: tuple[int, int],
    cores: int,
    fpus: int,
    threads: int,
    clock: float,
    bandwidth: float,
    memory: int,
    cache: float,
    shared: tuple[int, int],
    accelerated: bool = False,
) -> Card:
    """Return a row: bandwidth in GB/s, memory in bytes, cache in MiB, shared memory in KiB."""
    nbytes = round(bandwidth * GB), memory, round(cache * MIB), shared[0] * KIB, shared[1] * KIB
    return Card(kind, capability, cores, fpus, threads, clock, *nbytes, accelerated)


HOPPER = BLACKWELL = (228, 227)
CARDS = {
    "v100": _card("Tesla V100-SXM2-16GB", (7, 0), 80, 64, 2048, 1.53, 898.048, 16935682048, 6, (96, 96)),
    "a100-40": _card(
        "NVIDIA A100-SXM4-40GB", (8, 0), 108, 64, 2048, 1.41, 1555.2, 42331013120, 40, (164, 163)
    ),
    "a100-80": _card(
        "NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 2048, 1.41, 2039.04, 85100068864, 40, (164, 163)
    ),
    "a6000": _card("NVIDIA RTX A6000", (8, 6), 84, 128, 1536, 1.8, 768.096, 51041271808, 6, (100, 99)),
    "h100": _card(
        "NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 2048, 1.98, 3352.32, 84942979072, 50, HOPPER, True
    ),
    "h200": _card(
        "NVIDIA H200 141GB HBM3e", (9, 0), 132, 128, 2048, 1.98, 4800, 151397597184, 50, HOPPER, True
    ),
    "b200": _card(
        "NVIDIA B200", (10, 0), 148, 128, 2048, 1.965, 7672.32, 191514411008, 126.5, BLACKWELL, True
    ),
    "gb200": _card(
        "NVIDIA GB200", (10, 0), 152, 128, 2048, 2.062, 7928.064, 197897748480, 129.25, BLACKWELL, True
    ),
    "b300": _card("NVIDIA B300", (10, 3), 158, 128, 2048, 1.965, 7936, 297021865984, 129.25, BLACKWELL),
    "gb300": _card(
        "NVIDIA GB300", (10, 3), 152, 128, 2048, 2.07, 7928.064, 297021079552, 129.25, BLACKWELL, True
    ),
    "rtx6000pro": _card(
        "NVIDIA RTX PRO 6000 Blackwell", (12, 0), 188, 128, 1536, 2.6, 1792, 103079215104, 128, (128, 99)
    ),
}
"""Cards by the names that `jaxpar.topology` accepts."""


def card_of(kind: str) -> str:
    """Return the card with a `jax.Device.device_kind`.

    >>> card_of("NVIDIA RTX A6000")
    'a6000'
    """
    return next(card for card, figures in CARDS.items() if figures.kind == kind)
