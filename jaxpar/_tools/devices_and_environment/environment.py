"""`jaxpar env`: the environment for a bug report, as `torch.utils.collect_env` prints for torch."""

from __future__ import annotations

import functools
import importlib
import os
import platform
import re
import shutil
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TypeAlias, TypeVar

from ...distributed.secret import VARIABLE as SECRET
from .sizes import sizes

T = TypeVar("T")

Value: TypeAlias = "str | int | bool | list[str] | dict[str, str] | None"
Part: TypeAlias = "dict[str, Value]"
"""Values by name, of types that JSON supports."""

PACKAGES = ("jaxpar", "jax", "jaxlib", "flax", "optax", "numpy", "orbax-checkpoint", "torch")
PLUGINS = re.compile(r"(jax-(?P<backend>cuda|rocm)\d*-)(plugin|pjrt)|libtpu|nvidia-ml-py")
"""Packages that are listed only if they are installed."""

VARIABLES = re.compile(
    r"(XLA|JAX|JAXPAR|NCCL)_.*|(CUDA|NVIDIA|ROCR|HIP)_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|(PJRT_)?NPROC|"
    r"LIBTPU_INIT_ARGS|RANK|WORLD_SIZE|LOCAL_RANK|MASTER_(ADDR|PORT)"
)
OPTIONS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_platforms", "jax_num_cpu_devices")


def environment() -> dict[str, Part]:
    variables: Part = {
        name: value if name != SECRET else "set, and not shown"
        for name, value in sorted(os.environ.items())
        if VARIABLES.fullmatch(name)
    }
    # JAX reserves three quarters of every GPU when it starts, which other processes may need.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return {
        "versions": _versions(),
        "host": _host(),
        "backends": _backends(),
        "options": _options(),
        "variables": variables,
    }


def text(parts: dict[str, Part]) -> str:
    lines = [(name, _readable(name, value)) for part in parts.values() for name, value in part.items()]
    if not parts["variables"]:
        lines.append(("variables", "none of those that matter is set"))
    width = max(len(name) for name, _ in lines)
    between = "\n" + " " * (width + 2)
    return "\n".join(f"{name:{width}}  {between.join(value.splitlines() or [''])}" for name, value in lines)


def attempt(look: Callable[[], T]) -> T | str:
    """Return the result of `look`, or its error as text."""
    try:
        return look()
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = str(error) or f"{where.line} (line {where.lineno} of {Path(where.filename).name})"
        return f"failed: {type(error).__name__}: {what}"


def _installed() -> dict[str, str]:
    return {d.name: d.version for d in metadata.distributions() if d.name}


def _versions() -> Part:
    installed = attempt(_installed)
    if not isinstance(installed, dict):
        return {"python": platform.python_version(), "packages": installed}
    named = {name: installed.get(name, "not installed") for name in PACKAGES}
    plugins = {name: version for name, version in sorted(installed.items()) if PLUGINS.fullmatch(name)}
    return {"python": platform.python_version(), **named, **plugins}


def _host() -> Part:
    return {
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "cpus_of_this_process": attempt(lambda: len(os.sched_getaffinity(0))),
        "memory_total": attempt(lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        "memory_free": attempt(_free_memory),
        "disk_free_here": attempt(lambda: shutil.disk_usage(".").free),
    }


def _free_memory() -> int:
    """Return the available memory, as Linux estimates it; elsewhere the unused pages."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.M)
    if match is None:
        raise LookupError("MemAvailable is not in /proc/meminfo")
    return int(match[1]) * 1024


def _backends() -> Part:
    jax = attempt(lambda: importlib.import_module("jax"))
    if isinstance(jax, str):
        return {"default_backend": jax}

    def devices() -> list[str]:
        from ..._devices import devices as _devices

        return [f"{_devices.name(d)} {d.device_kind}" for d in _devices.devices()]

    descriptions = attempt(devices)  # first: it obeys JAXPAR_DEVICES, which is too late once JAX has started
    return {
        "default_backend": attempt(jax.default_backend),
        "devices": descriptions,
        "process_index": attempt(jax.process_index),
        "process_count": attempt(jax.process_count),
        **{f"backend_{name}": attempt(functools.partial(_start, name)) for name in _plugins()},
    }


def _plugins() -> list[str]:
    """Return the accelerators for which a JAX plugin is installed."""
    # Each is started explicitly, because JAX silently falls back to the CPU if a plugin fails.
    matches = map(PLUGINS.fullmatch, attempt(_installed))
    return sorted({match["backend"] for match in matches if match and match["backend"]})


def _start(name: str) -> str:
    import jax

    devices = jax.devices(name)
    return f"{len(devices)} x {devices[0].device_kind}, {devices[0].client.platform_version}"


def _options() -> Part:
    jax = attempt(lambda: importlib.import_module("jax"))
    if isinstance(jax, str):
        return {"options": jax}
    return {name: getattr(jax.config, name, None) for name in OPTIONS}


def _readable(name: str, value: Value) -> str:
    if isinstance(value, list):
        return "\n".join(map(str, value))
    return sizes(value) if isinstance(value, int) and name.startswith(("memory", "disk")) else str(value)
