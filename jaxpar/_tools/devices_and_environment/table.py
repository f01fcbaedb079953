"""`jaxpar devices`: a row for every device of this process, once or repeatedly, like nvidia-smi."""

from __future__ import annotations

import dataclasses
import os
import time

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from ..._devices import current as _current
from ..._devices import devices as _devices
from ...errors import DeviceError
from . import nvml
from .sizes import sizes

SHORTEST = 0.1
"""The shortest interval in seconds, because a reading takes the GPU driver's time."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A device at one moment; None where a number is not available.

    `bytes_in_use`, its peak and its limit are this process's; `gpu_bytes_used` counts all processes.
    """

    index: int
    name: str
    kind: str
    process: int
    bytes_in_use: int | None
    peak_bytes_in_use: int | None
    bytes_limit: int | None
    gpu_bytes_used: int | None
    gpu_bytes_total: int | None
    utilisation_percent: int | None
    temperature_celsius: int | None


@dataclasses.dataclass(frozen=True)
class DeviceTable:
    rows: list[Row]
    notes: list[str]


def look() -> DeviceTable:
    try:
        devices = _devices.devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that JAX_PLATFORMS' backends exist
        reason = str(error).strip() or f"no backend for JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')!r}"
        raise DeviceError(
            f"devices: JAX cannot start: {reason.splitlines()[0].rstrip('.')}. `jaxpar env` says more; "
            "JAX_PLATFORMS=cpu does without accelerators."
        ) from error
    measured = nvml.readings(devices)
    rows = []
    for index, (d, reading) in enumerate(zip(devices, measured.by_device, strict=True)):
        numbers = {**_current.memory_stats(d), **reading._asdict()}
        rows.append(Row(index, _devices.name(d), d.device_kind, d.process_index, **numbers))
    return DeviceTable(rows, _notes(rows, measured.trouble))


def document(snapshot: DeviceTable) -> dict[str, list[dict[str, str | int | None]] | list[str]]:
    return {"devices": [dataclasses.asdict(row) for row in snapshot.rows], "notes": snapshot.notes}


def text(snapshot: DeviceTable) -> Group:
    # On a narrow terminal cells may break at spaces, but the name must stay in one line.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    # Without NVML the column would be empty for every device.
    shared = any(row.gpu_bytes_used is not None for row in snapshot.rows)
    table.add_column("index", justify="right")
    table.add_column("name", no_wrap=True)
    table.add_column("kind")
    for column in ("process", "in use / peak / limit", *["GPU used"] * shared, "load", "temp."):
        table.add_column(column, justify="right")
    for row in snapshot.rows:
        table.add_row(
            str(row.index),
            row.name,
            row.kind,
            str(row.process),
            sizes(row.bytes_in_use, row.peak_bytes_in_use, row.bytes_limit),
            *[sizes(row.gpu_bytes_used, row.gpu_bytes_total)] * shared,
            "-" if row.utilisation_percent is None else f"{row.utilisation_percent}%",
            "-" if row.temperature_celsius is None else f"{row.temperature_celsius}°C",
        )
    return Group(table, *(f"\n{note}" for note in snapshot.notes))


def watch(console: Console, seconds: float) -> None:
    seconds = max(seconds, SHORTEST)
    if not console.is_terminal:
        while True:
            console.print(text(look()))
            time.sleep(seconds)
    with Live(text(look()), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(seconds)
            live.update(text(look()), refresh=True)


def _notes(rows: list[Row], trouble: str | None) -> list[str]:
    counted = [row.bytes_limit is not None for row in rows]
    notes = []
    if any(counted):
        notes.append("In use, peak, limit: this process, as JAX's allocator counts. GPU used: all processes.")
    if not all(counted):
        notes.append(
            "The CPU's backend counts no bytes: in use is the sum of this process's arrays, and peak and "
            "limit are not known."
        )
    return [*notes, *([trouble] if trouble else [])]
