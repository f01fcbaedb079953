"""Rendering: a result as a document for JSON, and as text with tables."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

import jaxpar

from ...parity.measuring import Judged, Kind
from .run import Epoch, Result
from .settings import LEARNING_RATE, MOMENTUM, TOLERANCE, TRAIN_ROWS

KINDS = (Kind.OUTPUT, Kind.LOSS, Kind.GRADIENT, Kind.STATE, Kind.WEIGHT)


def document(result: Result) -> dict[str, Any]:
    """Plain values; of two sides jaxpar's come first. A number that is not finite is None."""
    settings, found = result.settings, result.comparison
    verdict = {
        "same": found.same,
        "tolerance": TOLERANCE,
        "compared": len(found.rows),
        "largest": _plain(found.largest),
        "first": _plain(found.different[0] if found.different else None),
    }
    return {
        "settings": vars(settings) | {"fault": settings.fault and settings.fault.value},
        "devices": result.devices,
        "reference": result.reference,
        "last_batch": _last_batch(settings.batch_size),
        "epochs": [
            {
                "loss": epoch.losses,
                "accuracy": epoch.accuracies,
                "ms_per_step": epoch.times,
                "differences": {kind: _plain(row) for kind, row in _worst(epoch).items()},
            }
            for epoch in result.epochs
        ],
        "bytes_per_device": result.bytes_per_device,
        "verdict": verdict if result.reference else None,
        "sentence": _sentence(result),
    }


def text(result: Result) -> Group:
    """Tables for a terminal or a log, and the verdict as the last paragraph."""
    last = _last_batch(result.settings.batch_size)
    task = (
        f"{TRAIN_ROWS} handwritten digits in batches of {result.settings.batch_size}, the last one of an "
        f"epoch {sum(last)} as {'+'.join(map(str, last))}. BatchNorm CNN, float64, SGD with rate "
        f"{LEARNING_RATE} and momentum {MOMENTUM}."
    )
    parts: list[RenderableType] = [task, _training(result)]
    if result.reference:
        sizes = [
            [f"{row.difference.relative:.1e}" for row in _worst(epoch).values()] for epoch in result.epochs
        ]
        heads = ["epoch", *(kind.value for kind in KINDS)]
        parts.append(_table("Largest relative difference", heads, enumerate(sizes, start=1)))
    heads = ["device", "parameters", "BatchNorm statistics", "optimizer state"]
    held = {device: [f"{n:,}" for n in kinds.values()] for device, kinds in result.bytes_per_device.items()}
    parts += [_table("Bytes on each device", heads, held.items()), _sentence(result)]
    return Group(*(line for part in parts for line in ("", part)))


def _training(result: Result) -> Table:
    names = ["jaxpar", "PyTorch"] if result.reference else ["jaxpar"]
    heads = ["epoch", *(f"{what}\n{name}" for what in ("loss", "accuracy", "ms/step") for name in names)]
    rows = [
        [*map("{:.6f}".format, e.losses), *map("{:.2%}".format, e.accuracies), *map("{:.1f}".format, e.times)]
        for e in result.epochs
    ]
    title = "Training: mean loss, accuracy on the test digits, median time of a step"
    table = _table(title, heads, enumerate(rows, start=1))
    if "CPU" in result.devices:
        table.caption = "All devices share one CPU, so the times say nothing about GPUs."
    return table


def _table(title: str, heads: list[str], rows: Iterable[tuple[object, list[str]]]) -> Table:
    table = Table(
        title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, show_edge=False
    )
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left")
    for first, cells in rows:
        table.add_row(str(first), *cells)
    return table


def _last_batch(batch_size: int) -> list[int]:
    """The rows of each replica in the last batch of an epoch."""
    rows = TRAIN_ROWS % batch_size or batch_size
    ids = list(range(jaxpar.device_count()))
    return list(jaxpar.scatter(np.zeros(rows, np.float32), ids).sizes) if ids else [rows]


def _sentence(result: Result) -> str:
    found, fault = result.comparison, result.settings.fault
    ours = f"jaxpar.DataParallel on {result.devices}"
    if not result.reference:
        return (
            f"Trained with {ours}. The comparison with PyTorch was left out, because torch is not installed: "
            'pip install "jaxpar[torch]".'
        )
    compared = (
        f"Compared: {ours} with {result.reference}; {len(found.rows)} pairs of tensors in "
        f"{result.settings.steps} steps: outputs, loss and gradients, then BatchNorm statistics and weights, "
        f"and the test outputs after every epoch. Tolerance: {TOLERANCE:.0e}, relative: the largest "
        "|jaxpar - PyTorch| in a tensor over the largest |PyTorch| in it. "
        f"Largest difference: {_where(found.largest)}."
    )
    if found.same:
        return f"Parity holds. {compared}"
    planted = f" The fault {fault.value!r} was planted." if fault else ""
    return f"Parity FAILS.{planted} First beyond the tolerance: {_where(found.different[0])}. {compared}"


def _where(row: Judged | None) -> str:
    if row is None:
        return "none, for nothing was compared"
    d = row.difference
    return f"{d.fault or format(d.relative, '.1e')} in {d.kind.value} {d.name}, step {d.step}"


def _worst(epoch: Epoch) -> dict[str, Judged]:
    """The largest difference of each kind; empty with one side."""
    kinds = {kind.value: [row for row in epoch.rows if row.difference.kind is kind] for kind in KINDS}
    return {kind: max(rows, key=lambda row: row.severity) for kind, rows in kinds.items() if rows}


def _plain(row: Judged | None) -> dict[str, Any] | None:
    if row is None:
        return None
    d = row.difference
    size = d.relative if math.isfinite(d.relative) else None
    return {"kind": d.kind.value, "name": d.name, "step": d.step, "size": size, "reason": d.fault or ""}
