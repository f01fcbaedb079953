"""gpu_compiler: JAX's names around XLA's compiler for GPUs that this host does not have.

The compiler is part of a JAX plugin, which also runs programs if there is a driver.
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
"""JAX plugins that contain XLA's compiler for NVIDIA GPUs."""

UNCHECKED = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
"""Environment variable that lets a plugin start without cuDNN and other run-time libraries."""


def compile_only(device: jax.Device) -> bool:
    """Return whether a device is one of `gpu_topology`, for which programs compile but do not run."""
    return type(device.client).__name__ == "CompileOnlyPyClient"


def lowered_for_topology(lowered: jax.stages.Lowered) -> bool:
    """Return whether a program was lowered for devices on which nothing runs."""
    backend = lowered._lowering.compile_args["backend"]
    return type(backend).__name__ == "CompileOnlyPyClient"


def kept_arguments(compiled: jax.stages.Compiled) -> tuple[int, ...]:
    """Return the numbers of the arguments that are parameters of the program; JAX drops those without use."""
    return tuple(sorted(compiled._executable._kept_var_idx))  # type: ignore[attr-defined]


def is_pmap(function: object) -> bool:
    """Return whether `jax.pmap` made a function, whose arguments are stacks of one array for each device."""
    return "pmap" in getattr(getattr(function, "lower", None), "__qualname__", "")


def gpu_topology(shape: str, target: str, start: Callable[[], object]) -> tuple[jax.Device, ...] | None:
    """Return the GPUs of `1x<hosts>x<devices>` for a GpuTargetConfigProto, or None without a compiler.

    `start` starts JAX with this host's devices. The plugin must be loaded afterwards, because JAX would
    otherwise try to run on GPUs, and abort without a driver. `jax.experimental.topologies` is JAX's
    interface, but cannot load a plugin whose check for cuDNN failed.
    """
    from jax.experimental import topologies

    # JAX logs the failed cuDNN check of a plugin with a traceback, which is expected on a host without GPUs.
    with _muted("jax._src.xla_bridge", "plugin configuration error"):
        start()
    if "cuda" not in xla_bridge._topology_factories and not _load_gpu_compiler():
        return None
    description = topologies.get_topology_desc("gpu", platform="cuda", topology=shape, target_config=target)
    return tuple(description.devices)


def _load_gpu_compiler() -> bool:
    name = next((name for name in PLUGINS if _is_installed(name)), None)
    if name is None:
        return False
    # Set during the initialization only: the variable would also disable the check in child processes.
    before = os.environ.get(UNCHECKED)
    os.environ[UNCHECKED] = "1"
    try:
        importlib.import_module(name).initialize()
    finally:
        os.environ.pop(UNCHECKED)
        if before is not None:
            os.environ[UNCHECKED] = before
    # After clear_backends, JAX starts again and must not look for GPUs.
    xla_bridge._backend_factories.pop("cuda", None)
    return True


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package jax_plugins does not exist
        return False


@contextmanager
def _muted(logger: str, text: str) -> Iterator[None]:
    def unless(record: logging.LogRecord) -> bool:
        return text not in record.getMessage()

    logging.getLogger(logger).addFilter(unless)
    try:
        yield
    finally:
        logging.getLogger(logger).removeFilter(unless)


CUDNN = 91000
"""The cuDNN version of topologies, in cuDNN's encoding: 9.10.0."""


@contextmanager
def cudnn_of(device: jax.Device) -> Iterator[None]:
    """Make JAX's fused attention use a topology device's cuDNN version while tracing for the device.

    Otherwise it checks this host's version, and refuses to trace on a host without cuDNN, although the
    compiler does not need one. A target argument of `jax.nn.dot_product_attention(implementation="cudnn")`
    would replace this.
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
