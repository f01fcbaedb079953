"""gpu_compiler: JAX's names around XLA's compiler for GPUs that are not there.

The compiler is a plugin of JAX. With a driver it also runs programs; here it must compile without one.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
from jax._src import xla_bridge

PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
"""XLA's compilers for NVIDIA GPUs, as JAX's plugins."""

UNCHECKED = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
"""JAX's variable that lets a plugin start without cuDNN and the other libraries with which programs run."""


def compile_only(device: jax.Device) -> bool:
    """Whether programs can be compiled for a device, but not run: one of `gpu_topology`."""
    return type(device.client).__name__ == "CompileOnlyPyClient"


def gpu_topology(shape: str, target: str, start: Callable[[], object]) -> tuple[jax.Device, ...] | None:
    """The GPUs of `1x<hosts>x<devices>` for a GpuTargetConfigProto; None without a compiler for them.

    Args:
      start: starts JAX with the devices that this host has. Only then the plugin is loaded, because JAX would
        try to run on GPUs otherwise, and end for lack of a driver.

    `jax.experimental.topologies` is JAX's way to these; it has none to a plugin whose check for cuDNN failed.
    """
    from jax.experimental import topologies

    with _muted("jax._src.xla_bridge", "plugin configuration error"):
        start()
    if "cuda" not in xla_bridge._topology_factories and not _load_gpu_compiler():
        return None
    description = topologies.get_topology_desc("gpu", platform="cuda", topology=shape, target_config=target)
    return tuple(description.devices)


def _load_gpu_compiler() -> bool:
    """Loads the first plugin that is installed, as a compiler only."""
    name = next((name for name in PLUGINS if _is_installed(name)), None)
    if name is None:
        return False
    before = os.environ.get(UNCHECKED)
    os.environ[UNCHECKED] = "1"
    try:
        importlib.import_module(name).initialize()
    finally:
        os.environ.pop(UNCHECKED)
        if before is not None:
            os.environ[UNCHECKED] = before
    # A JAX that starts anew, after clear_backends, must not look for GPUs.
    xla_bridge._backend_factories.pop("cuda", None)
    return True


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # there are no plugins at all
        return False


@contextmanager
def _muted(logger: str, text: str) -> Iterator[None]:
    """Without the log entries that hold a text: JAX's traceback for a plugin that finds no cuDNN."""

    def unless(record: logging.LogRecord) -> bool:
        return text not in record.getMessage()

    logging.getLogger(logger).addFilter(unless)
    try:
        yield
    finally:
        logging.getLogger(logger).removeFilter(unless)


CUDNN = 91000
"""The version that topologies have, as cuDNN counts: 9.10.0."""


@contextmanager
def cudnn_of(device: jax.Device) -> Iterator[None]:
    """While tracing for a device of a topology, JAX's fused attention asks for that device's cuDNN.

    Otherwise it asks for this host's, and refuses where there is none, although the compiler needs none. A
    way to give `jax.nn.dot_product_attention(implementation="cudnn")` a target would do.
    """
    from jax._src.cudnn import fused_attention_stablehlo as attention

    if not compile_only(device):
        yield
        return
    capability = tuple(int(n) for n in device.compute_capability.split("."))
    before = attention.check_cudnn_version, attention.check_compute_capability
    attention.check_cudnn_version = lambda: CUDNN
    attention.check_compute_capability = lambda least: capability >= tuple(int(n) for n in least.split("."))
    try:
        yield
    finally:
        attention.check_cudnn_version, attention.check_compute_capability = before
