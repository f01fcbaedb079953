"""The estimate as text for a terminal or a log."""

from __future__ import annotations

from rich import box
from rich.console import Group
from rich.table import Table

from .count import COMPILED, PARTS
from .figures import Figures


def text(found: Figures) -> Group:
    """Two tables, and what the numbers rest on."""
    return Group(_heading(found), "", _memory(found), "", _scaling(found), "", *_notes(found))


def number(value: float, unit: str = "") -> str:
    """With a prefix of the SI and three digits.

    >>> number(99864216040, "B"), number(0.0000324, "s"), number(0, "B")
    ('99.9 GB', '32.4 µs', '0 B')
    """
    prefixes = [("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)]
    prefixes += [("m", 1e-3), ("µ", 1e-6), ("n", 1e-9)]
    if value == 0:
        return f"0 {unit}".rstrip()
    # 999.9 would be written 1.00e+03, so what rounds up takes the next prefix.
    prefix, scale = next((p for p in prefixes if value >= 0.9995 * p[1]), prefixes[-1])
    short = f"{value / scale:.3g}"
    return f"{short} {prefix}{unit}".rstrip()


def _heading(found: Figures) -> str:
    return f"{found.model}, {found.rows} rows on each {found.hardware.name}, compiled for {found.platform}"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _memory(found: Figures) -> Table:
    table = _table(*PARTS, "total", "of")
    memory = found.memory
    parts = [number(getattr(memory, part), "B") for part in PARTS]
    table.add_row(*parts, number(memory.total, "B"), number(found.hardware.memory, "B"))
    return table


def _scaling(found: Figures) -> Table:
    table = _table("devices", "hosts", "computing", "all-reduce", "waiting", "step", "efficiency", "rows/s")
    for p in found.points:
        times = [number(t, "s") for t in (p.computing, p.communicating, p.waiting, p.step)]
        table.add_row(str(p.devices), str(p.hosts), *times, f"{p.efficiency:.1%}", number(p.rows_per_second))
    return table


def _notes(found: Figures) -> list[str]:
    hardware, work, traffic = found.hardware, found.work, found.traffic
    source = "the compiled step" if traffic.source == COMPILED else "shapes (one device to compile for)"
    room = "" if found.fits else f" This is more than the {number(hardware.memory, 'B')} of one device."
    link = f"link {number(hardware.link, 'B/s')} and {number(hardware.latency, 's')}"
    network = f"{number(hardware.network, 'B/s')} and {number(hardware.network_latency, 's')}"
    operations = number(work.flops / hardware.rate(work.kind), "s")
    traffic_alone = number(work.bytes / hardware.bandwidth, "s")
    return [
        f"XLA's sum for the whole compiled step: {number(found.memory.compiled_step, 'B')}.{room}",
        f"A step is {number(work.flops, 'FLOP')} in {work.kind}, {operations} at the peak, and "
        f"{number(work.bytes, 'B')} of memory traffic, {traffic_alone} at the peak; "
        f"all-reduces: {traffic.count} with {number(traffic.bytes, 'B')}, from {source}.",
        f"Rates: {number(hardware.rate(work.kind), 'FLOP/s')}, memory {number(hardware.bandwidth, 'B/s')}, "
        f"{link}, network of {hardware.per_host} devices {network}; efficiency {found.efficiency:g}, "
        f"overlap {found.overlap:g}.",
        "A prediction from peak rates, not a measurement: an upper bound of speed.",
    ]
