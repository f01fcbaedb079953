"""Rendering: a result as text with tables, or as a document for JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from .compare import KINDS, Difference
from .run import Epoch, Result
from .settings import LEARNING_RATE, MOMENTUM, TRAIN_ROWS
from .versions import version

RULE = "the largest |jaxpar - PyTorch| in a tensor over the largest |PyTorch| in it"


def text(result: Result) -> Group:
    """Tables for a terminal or a log, and the verdict as the last paragraph."""
    parts: list[RenderableType] = [_task(result), _training(result), _bytes(result), _sentence(result)]
    if result.verdict:
        parts.insert(2, _differences(result))
    return Group(*(line for part in parts for line in ("", part)))


def document(result: Result) -> dict[str, Any]:
    """The same content as plain values. A number that is not finite is None."""
    settings, verdict = result.settings, result.verdict
    return _plain(
        {
            "versions": {name: version(name) for name in ("jaxpar", "jax", "flax", "torch")},
            "settings": asdict(settings) | {"fault": settings.fault and settings.fault.value},
            "devices": result.devices,
            "reference": result.reference,
            "last_batch": result.last_batch,
            "epochs": [asdict(epoch) | {"differences": _worst(epoch)} for epoch in result.epochs],
            "bytes_per_device": result.bytes_per_device,
            "rule": RULE,
            "verdict": verdict and asdict(verdict) | {"same": verdict.same},
            "sentence": _sentence(result),
        }
    )


def _task(result: Result) -> str:
    last = result.last_batch
    return (
        f"{TRAIN_ROWS} handwritten digits in batches of {result.settings.batch_size}, the last one of an "
        f"epoch {sum(last)} as {'+'.join(map(str, last))}. BatchNorm CNN, float64, SGD with rate "
        f"{LEARNING_RATE} and momentum {MOMENTUM}."
    )


def _training(result: Result) -> Table:
    names = ["jaxpar", "PyTorch"] if result.reference else ["jaxpar"]
    heads = [f"{what}\n{name}" for what in ("loss", "accuracy", "ms/step") for name in names]
    table = _table("Training: mean loss, accuracy on the test digits, median time of a step", "epoch", *heads)
    if "CPU" in result.devices:
        table.caption = "All devices share one CPU, so the times say nothing about GPUs."
    for epoch in result.epochs:
        sides = [side for side in (epoch.jaxpar, epoch.torch) if side]
        losses = [f"{side.loss:.6f}" for side in sides]
        accuracies = [f"{side.accuracy:.2%}" for side in sides]
        times = [f"{1000 * side.seconds_per_step:.1f}" for side in sides]
        table.add_row(str(epoch.number), *losses, *accuracies, *times)
    return table


def _differences(result: Result) -> Table:
    table = _table("Largest relative difference", "epoch", *KINDS)
    for epoch in result.epochs:
        table.add_row(str(epoch.number), *(f"{d.size:.1e}" if d else "" for d in _worst(epoch).values()))
    return table


def _bytes(result: Result) -> Table:
    table = _table("Bytes on each device", "device", "parameters", "BatchNorm statistics", "optimizer state")
    for device, held in result.bytes_per_device.items():
        table.add_row(device, *(f"{count:,}" for count in held.values()))
    return table


def _sentence(result: Result) -> str:
    verdict, fault = result.verdict, result.settings.fault
    ours = f"jaxpar.DataParallel on {result.devices}"
    if verdict is None:
        return (
            f"Trained with {ours}. The comparison with PyTorch was left out, because torch is not installed: "
            'pip install "jaxpar[torch]".'
        )
    compared = (
        f"Compared: {ours} with {result.reference}; {verdict.compared} pairs of tensors in "
        f"{result.settings.steps} steps: outputs, loss and gradients, then BatchNorm statistics and weights, "
        f"and the test outputs after every epoch. Tolerance: {verdict.tolerance:.0e}, relative: {RULE}."
    )
    largest = f"Largest difference: {_where(verdict.largest)}."
    if verdict.same:
        return f"Parity holds. {compared} {largest}"
    planted = f" The fault {fault.value!r} was planted." if fault else ""
    return f"Parity FAILS.{planted} First beyond the tolerance: {_where(verdict.first)}. {largest} {compared}"


def _where(difference: Difference | None) -> str:
    if difference is None:
        return "none, for nothing was compared"
    d = difference
    return f"{d.reason or format(d.size, '.1e')} in {d.kind} {d.name}, epoch {d.epoch}, step {d.step}"


def _worst(epoch: Epoch) -> dict[str, Difference | None]:
    """The largest difference of each kind."""
    found = {kind: [d for d in epoch.differences if d.kind == kind] for kind in KINDS}
    return {kind: max(ds, key=lambda d: d.size, default=None) for kind, ds in found.items()}


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(
        title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, show_edge=False
    )
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Difference):
        return _plain(asdict(value))
    return None if isinstance(value, float) and not math.isfinite(value) else value
