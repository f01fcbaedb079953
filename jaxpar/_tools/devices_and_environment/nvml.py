"""Read a GPU's load, temperature and memory from NVML, as `torch.cuda.utilization` does.

NVML numbers all GPUs of the host in bus order, and JAX those that CUDA_VISIBLE_DEVICES allows, in a different
order. JAX does not reveal which GPU a device is, but the CUDA driver returns the bus address of its n-th one.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple, TypeVar

import jax

from ..._devices import visible as _visible

PACKAGE = "nvidia-ml-py"

T = TypeVar("T")


class Reading(NamedTuple):
    """One GPU's measurements; None where the GPU does not report one."""

    gpu_bytes_used: int | None = None
    gpu_bytes_total: int | None = None
    utilisation_percent: int | None = None
    temperature_celsius: int | None = None


class Readings(NamedTuple):
    by_device: list[Reading]
    trouble: str | None = None


def readings(devices: Sequence[jax.Device]) -> Readings:
    """Measure each device now. Never raises."""
    nothing = [Reading()] * len(devices)
    if not any(map(is_nvidia, devices)):
        return Readings(nothing)
    try:
        library = importlib.import_module("pynvml")
        library.nvmlInit()
    except ImportError:
        return Readings(nothing, f"Utilisation and temperature need {PACKAGE}: pip install {PACKAGE}.")
    except Exception as error:
        return Readings(nothing, f"Utilisation and temperature are not to be had: {error}.")
    try:
        return Readings([_read(library, d) if is_nvidia(d) else Reading() for d in devices])
    finally:
        library.nvmlShutdown()


def is_nvidia(device: jax.Device) -> bool:
    return device.platform == "gpu" and "cuda" in device.client.platform_version.lower()


def _read(library: ModuleType, device: jax.Device) -> Reading:
    handle = _handle(library, device)
    if handle is None:
        return Reading()

    def ask(question: Callable[[], T]) -> T | None:
        try:
            return question()
        except library.NVMLError:  # some GPUs, and MIG slices, do not report every number
            return None

    memory = ask(lambda: library.nvmlDeviceGetMemoryInfo(handle))
    return Reading(
        utilisation_percent=ask(lambda: library.nvmlDeviceGetUtilizationRates(handle).gpu),
        temperature_celsius=ask(
            lambda: library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU)
        ),
        gpu_bytes_used=memory and memory.used,
        gpu_bytes_total=memory and memory.total,
    )


def _handle(library: ModuleType, device: jax.Device) -> object | None:
    ordinal = device.local_hardware_id
    address = bus_address(ordinal)
    try:
        if address is not None:
            # The bus address is unambiguous; both indices depend on the environment.
            return library.nvmlDeviceGetHandleByPciBusId(address)
        handle = _from_variable(library, ordinal)
        return handle if library.nvmlDeviceGetName(handle) == device.device_kind else None
    except (library.NVMLError, IndexError):
        return None


def bus_address(ordinal: int) -> str | None:
    """Return the bus address of CUDA's n-th device, such as `0000:3b:00.0`. The driver already runs."""
    text, device = ctypes.create_string_buffer(32), ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        answered = driver.cuDeviceGet(ctypes.byref(device), ordinal) == 0
        answered = answered and driver.cuDeviceGetPCIBusId(text, len(text), device) == 0
    except (OSError, AttributeError):
        return None
    return text.value.decode() if answered else None


def _from_variable(library: ModuleType, ordinal: int) -> object:
    value = _visible.in_force()
    entry = str(ordinal) if value is None else value.split(",")[ordinal].strip()
    if entry.isdigit():
        return library.nvmlDeviceGetHandleByIndex(int(entry))
    return library.nvmlDeviceGetHandleByUUID(entry)
