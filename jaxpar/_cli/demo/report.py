"""A demo's result as a JSON document, and as text with tables."""

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
from .run import DemoResult
from .settings import LEARNING_RATE, MOMENTUM, TOLERANCE, TRAIN_ROWS

KINDS = (Kind.OUTPUT, Kind.LOSS, Kind.GRADIENT, Kind.STATE, Kind.WEIGHT)


def document(result: DemoResult) -> dict[str, Any]:
    settings, comparison = result.settings, result.comparison
    verdict = None
    if comparison is not None:
        verdict = {
            "same": comparison.same,
            "tolerance": TOLERANCE,
            "compared": len(comparison.rows),
            "largest": _plain(comparison.largest),
            "first": _plain(comparison.different[0] if comparison.different else None),
        }
    return {
        "settings": vars(settings),
        "devices": result.devices,
        "reference": result.reference,
        "last_batch": _last_batch(settings.batch_size),
        "epochs": [
            {name: [figure] for name, figure in epoch._asdict().items()}
            | {"differences": {kind: _plain(row) for kind, row in _worst(result, number).items()}}
            for number, epoch in enumerate(result.epochs)
        ],
        "bytes_per_device": result.bytes_per_device,
        "verdict": verdict,
        "sentence": _sentence(result),
    }


def text(result: DemoResult) -> Group:
    last = _last_batch(result.settings.batch_size)
    task = (
        f"{TRAIN_ROWS} handwritten digits in batches of {result.settings.batch_size}, the last one of an "
        f"epoch {sum(last)} as {'+'.join(map(str, last))}. BatchNorm CNN, float64, SGD with rate "
        f"{LEARNING_RATE} and momentum {MOMENTUM}."
    )
    figures = [[f"{e.loss:.6f}", f"{e.accuracy:.2%}", f"{e.ms_per_step:.1f}"] for e in result.epochs]
    training = _table(
        "Training with jaxpar: mean loss, accuracy on the test digits, median time of a step",
        ["epoch", "loss", "accuracy", "ms/step"],
        enumerate(figures, start=1),
    )
    if "CPU" in result.devices:
        training.caption = "All devices share one CPU, so the times say nothing about GPUs."
    parts: list[RenderableType] = [task, training]
    if result.comparison is not None:
        worst = [_worst(result, number).values() for number in range(len(result.epochs))]
        sizes = [[f"{row.difference.relative:.1e}" for row in rows] for rows in worst]
        heads = ["epoch", *(kind.value for kind in KINDS)]
        parts.append(_table("Largest relative difference", heads, enumerate(sizes, start=1)))
    heads = ["device", "parameters", "BatchNorm statistics", "optimizer state"]
    cells = {device: [f"{n:,}" for n in kinds.values()] for device, kinds in result.bytes_per_device.items()}
    parts += [_table("Bytes on each device", heads, cells.items()), _sentence(result)]
    return Group(*(line for part in parts for line in ("", part)))


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
    rows = TRAIN_ROWS % batch_size or batch_size
    ids = list(range(jaxpar.device_count()))
    return list(jaxpar.scatter(np.zeros(rows, np.float32), ids).sizes) if ids else [rows]


def _sentence(result: DemoResult) -> str:
    comparison = result.comparison
    trained = f"jaxpar.DataParallel on {result.devices}"
    if comparison is None:
        return (
            f"Trained with {trained}. The comparison with PyTorch was left out, because torch is not "
            'installed: pip install "jaxpar[torch]".'
        )
    compared = (
        f"Compared: {trained} with {result.reference}; {len(comparison.rows)} pairs of tensors in "
        f"{result.settings.steps} steps: outputs, loss and gradients, then BatchNorm statistics, updates and "
        f"weights. Tolerance: {TOLERANCE:.0e}, relative: the largest |jaxpar - PyTorch| in a tensor over the "
        f"largest |PyTorch| in it. Largest difference: {_where(comparison.largest)}."
    )
    if comparison.same:
        return f"Parity holds. {compared}"
    return f"Parity FAILS. First beyond the tolerance: {_where(comparison.different[0])}. {compared}"


def _where(row: Judged | None) -> str:
    if row is None:
        return "none, for nothing was compared"
    d = row.difference
    tensor = f"{d.kind.value} {d.name}".rstrip()
    return f"{d.fault or format(d.relative, '.1e')} in {tensor}, step {d.step}"


def _worst(result: DemoResult, epoch: int) -> dict[str, Judged]:
    """Return the largest difference of each kind in an epoch, counted from 0; none without torch."""
    if result.comparison is None:
        return {}
    n = result.settings.steps_per_epoch
    rows = [row for row in result.comparison.rows if (row.difference.step - 1) // n == epoch]
    # By severity and not by size: a tensor of a wrong shape has no size.
    kinds = {kind.value: [row for row in rows if row.difference.kind is kind] for kind in KINDS}
    return {
        kind: max(same_kind, key=lambda row: row.severity) for kind, same_kind in kinds.items() if same_kind
    }


def _plain(row: Judged | None) -> dict[str, Any] | None:
    if row is None:
        return None
    d = row.difference
    size = d.relative if math.isfinite(d.relative) else None
    return {"kind": d.kind.value, "name": d.name, "step": d.step, "size": size, "reason": d.fault or ""}
