"""Two runs of one script in different worlds: processes, devices of each, accumulated batches."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from .envelope import ORDER, UNITS, Parting, Walk
from .matching import Aligned, MatchedNames
from .passes import listed
from .run import NORM, TappedRun, TappedStep

START = -1
"""The step of parameters that differ before the first step."""


@dataclass(frozen=True)
class WorldSize:
    """Numbers of processes, of devices of each, and of batches that an update accumulates."""

    processes: int
    devices: int
    accumulate: int

    def parts(self) -> int:
        """Return into how many parts the rows of an update may be divided."""
        return self.processes * self.devices * self.accumulate


def parsed(text: str) -> WorldSize:
    """Return the world of a text such as "2x4" or "2x4/2".

    Raises:
      ValueError: it is no such text.
    """
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)(?:/([1-9]\d*))?", text)
    if match is None:
        raise ValueError(
            f"parity.bisect: worlds has {text!r}; a world is the processes and the devices of each, as in "
            "2x4, and perhaps the batches that an update accumulates, as in 2x4/2."
        )
    return WorldSize(*(int(number or 1) for number in match.groups()))


def narrow(run: TappedRun) -> list[str]:
    """Return a note on parameters or gradients of a smaller type than float64."""
    for step in run.steps.values():
        for part in ("parameters", "gradients"):
            table = step.parts.get(part)
            small = [] if table is None else [d for d in table.dtypes if d in UNITS and d != "float64"]
            if table is not None and small:
                names = [n for n, d in zip(table.names, table.dtypes, strict=True) if d == small[0]]
                return [
                    f"{part} {listed(names)} are {small[0]}, which the script asks for (np.float32, "
                    "'float32'): differences that its rounding may make are not seen"
                ]
    return []


def compare_ends(a: TappedRun, b: TappedRun, walk: Walk) -> None:
    """Add a parting where one run ends, or leaves a step out, and the other goes on."""
    alone = sorted(a.steps.keys() ^ b.steps.keys())
    if alone and not (walk.partings and walk.partings[0].step <= alone[0]):
        one, other = (float(row_count(run.steps.get(alone[0]))) for run in (a, b))
        walk.partings.insert(0, Parting("batch", alone[0], "", one, other, 1.0, 0.0))


def compare_ranks(a: TappedRun, b: TappedRun, walk: Walk) -> None:
    """Add a parting where the processes of a run do not have the same gradients and parameters."""
    for k in walk.steps:
        parts = [part for run in (a, b) for part in processes_apart(run, k, walk)]
        if walk.partings and (walk.partings[0].step, ORDER.index(walk.partings[0].part)) <= (k, 1):
            return
        if parts:
            walk.partings.insert(0, Parting(parts[0], k, "", np.nan, np.nan, np.inf, 0.0))
            return


def processes_apart(run: TappedRun, step: int, walk: Walk) -> list[str]:
    """Return the parts in which the processes differ."""
    parts = []
    for part in ("gradients", "parameters"):
        tables = run.steps[step].ranks.get(part, [])
        norms = [t.values[:, NORM] for t in tables if t.names == tables[0].names]
        if any(np.abs(x - norms[0]).max() > walk.tolerance(part) * norms[0].max() for x in norms[1:]):
            parts.append(part)
    return parts


def compare_starts(a: TappedRun, b: TappedRun, names: MatchedNames, walk: Walk) -> None:
    """Add a parting where the parameters differ before the first step."""
    aligned = Aligned("parameters", a.start, b.start, names)
    if aligned and aligned.distance > 8 * walk.unit:
        leaf = aligned.names[int(np.argmax(aligned.distances))]
        walk.partings.insert(0, Parting("parameters", START, leaf, np.nan, np.nan, aligned.distance, 0.0))


def row_count(step: TappedStep | None) -> int:
    return next(iter(step.batch.values())).digests.shape[1] if step is not None and step.batch else 0
