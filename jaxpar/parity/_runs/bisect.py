"""Compare two tapped runs: the first step and the first quantity that part, and why."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ...errors import FileError
from .batches import batch_causes
from .buffers import divisors_within_rounding, extra_causes
from .clipping import with_clipped_gradients
from .envelope import ORDER, PartCurve, Parting, Walk, walked
from .gradients import gradient_causes
from .matching import MatchedNames, matched
from .operation_types import differences, together
from .passes import listed, loss_causes
from .run import TappedRun, read_run
from .scene import Scene
from .updates import (
    optimizer_causes,
    rate_causes,
    settings_within_rounding,
    update_causes,
    updates_in_turn,
)
from .world_causes import guesses, world_causes
from .worlds import WorldSize, compare_ends, compare_ranks, compare_starts, narrow, parsed

FORMAT, VERSION = "jaxpar.parity.Bisection", 1

QUANTITIES = {
    "batch": "the rows of the batch",
    "loss": "the loss",
    "gradients": "the gradients",
    "rate": "the learning rate",
    "parameters": "the parameters after the update",
    "optimizer": "the optimizer's state",
    "extra": "the buffers",
}
CAUSES = {
    "loss": loss_causes,
    "gradients": gradient_causes,
    "rate": rate_causes,
    "parameters": update_causes,
    "optimizer": optimizer_causes,
    "extra": extra_causes,
}

UNEXPLAINED = (
    "the forward pass differs: ",
    "the forward pass differs from step",
    "the gradients differ, at",
    "gradients differ by",
)
GUESSES = (*UNEXPLAINED, "the forward pass differs by little", "only the gradients of")
"""Beginnings of sentences about what nothing explains, and of those that leave several reasons."""

CONSEQUENCES = (
    *UNEXPLAINED[2:],
    "only the gradients of",
    "the forward pass differs by little",
    "gradients are rounded",
    "extra are",
)
"""Beginnings of sentences that operations in other types make true."""


ROUNDING = (
    "rounding: the gradients of single elements of {} are rounding alone, of which the optimizer makes whole "
    "updates. Whether anything else differs shows in float64, or with a larger eps"
)


@dataclass(frozen=True)
class Bisection:
    """Result of `bisect`.

    Attributes:
      a, b: the folders of the runs.
      same: whether rounding explains every difference.
      step: the first step that differs by more; None if `same`.
      part: the first quantity of that step, in the order of computation: "batch", "loss", "gradients",
        "rate", "parameters", "optimizer" or "extra".
      causes: sentences that name why. Several are alternatives.
      partings: where each part first differs; those after the first are mostly consequences.
      curves: the distance of each part by step, and up to which distance it is rounding.
      steps: the number of steps that both runs have.
      notes: what happened to the files, and what both runs do in different ways without consequences.
      unreached: what the verdict does not cover.
    """

    a: str
    b: str
    same: bool
    step: int | None
    part: str | None
    causes: tuple[str, ...]
    partings: tuple[Parting, ...]
    curves: Mapping[str, PartCurve]
    steps: int
    notes: tuple[str, ...]
    unreached: tuple[str, ...]

    def headline(self) -> str:
        """Return the verdict in one sentence."""
        if self.part is None:
            return f"The runs are the same for {self.steps} steps, up to rounding."
        return f"The runs part in step {self.step}: {QUANTITIES[self.part]}."

    def __str__(self) -> str:
        lines = [self.headline(), f"  A: {self.a}", f"  B: {self.b}"]
        for i, cause in enumerate(self.causes):
            lines.append(f"  {'or' if i else 'Because'}: {cause}")
        if self.part is not None and not self.causes:
            lines.append("  No known cause explains it.")
        for p in self.partings:
            leaf = f" of {p.leaf}" if p.leaf else ""
            lines.append(
                f"  step {p.step}: {p.part}{leaf}: {p.a:.9g} and {p.b:.9g} "
                f"(distance {p.distance:.2g}, rounding {p.allowed:.2g})"
            )
        lines += [f"  Note: {text}" for text in self.notes]
        lines += [f"  Not reached: {text}" for text in self.unreached]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain data for JSON, with a format and a version; infinity is a string."""
        return {"format": FORMAT, "version": VERSION, **_plain(asdict(self))}

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report, with the curves, as one HTML file that needs no network."""
        from .._render.html import bisection_page

        with open(path, "w", encoding="utf-8") as file:
            file.write(bisection_page(self))


def _labelled(result: Bisection, worlds: tuple[str, str]) -> Bisection:
    """Return the result with the worlds' names for run A and run B."""

    def text_of(text: str) -> str:
        return re.sub(r"\b[Rr]un ([AB])\b", lambda m: worlds["AB".index(m.group(1))], text)

    causes, notes, unreached = (
        tuple(map(text_of, texts)) for texts in (result.causes, result.notes, result.unreached)
    )
    return replace(result, causes=causes, notes=notes, unreached=unreached)


def _plain(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {str(key): _plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(value) for value in x]
    return str(x) if isinstance(x, float) and json.dumps(x).lstrip("-")[0] in "NI" else x


def bisect(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    nudged: str | os.PathLike[str] | None = None,
    names: Mapping[str, str] | None = None,
    worlds: tuple[str, str] | None = None,
) -> Bisection:
    """Find where two tapped training runs part, and name the cause.

    Steps are compared part by part in the order in which they are computed: rows of the batch, loss,
    gradients, rate, parameters, state. A difference counts if it is larger than what rounding makes of the
    earlier differences. The cause is read from the taps: nothing is run.

    Args:
      a, b: folders that `Tap` wrote, of either framework and of any number of processes.
      nudged: the folder of run A repeated from parameters that differ by one rounding. Its distance from
        run A then is the measure of rounding.
      names: names of parameters in run B, by those in run A, where matching by name and content fails.
      worlds: the runs are one script in two worlds: numbers of processes, of devices of each, and of batches
        that an update accumulates, as in ("1x1", "2x4/2"). Every difference then counts, and causes are
        about worlds; one that nothing proves begins with "perhaps".

    Returns:
      A Bisection.

    Raises:
      FileError: a folder without taps, or with a damaged file; runs without common steps, or with samples
        that other seeds drew.
      ValueError: `names` has a name that was not tapped; `worlds` is not like ("1x1", "2x4/2").

    >>> import tempfile, numpy as np
    >>> from jaxpar import parity
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for run, rate in (("a", 0.1), ("b", 0.2)):
    ...         with parity.Tap(f"{folder}/{run}") as tap:
    ...             for step in range(4):
    ...                 tap(step, batch=np.ones((2, 3)), loss=1.0, rate=rate)
    ...     bisection = parity.bisect(f"{folder}/a", f"{folder}/b")
    >>> bisection.step, bisection.part, bisection.causes
    (0, 'rate', ("run A's rate is not run B's (run B's is 2 times as large)",))
    """
    pair = None if worlds is None else (parsed(worlds[0]), parsed(worlds[1]))
    runs = [read_run(folder) for folder in (a, b, nudged) if folder is not None]
    for run in runs[1:]:
        _check(runs[0], run)
    paired = matched(runs[0], runs[1], names)
    clips_later = None
    if pair is None:
        runs, clips_later = with_clipped_gradients(runs, paired)
    one, other = runs[:2]
    third = None if nudged is None else runs[2]
    nudged_names = None if third is None else matched(one, third, None)
    walk = walked(one, other, paired, third, nudged_names, pair is not None, clips_later)
    settings: list[str] = []
    if pair is None and not walk.partings:
        settings = _part_within_rounding(Scene(one, other, paired, walk, walk.steps[0]))
    if pair is not None:
        compare_ends(one, other, walk)
        compare_ranks(one, other, walk)
        compare_starts(one, other, paired, walk)
    result = _judged(one, other, paired, walk, pair, settings)
    return result if worlds is None else _labelled(result, worlds)


def _part_within_rounding(scene: Scene) -> list[str]:
    """Part runs whose first step shows another setting before any array differs by more than rounding.

    Such a setting explains the small differences of all elements. Returns the causes.
    """
    part, causes = "extra", divisors_within_rounding(scene)
    if not causes:
        scene = replace(scene, step=scene.updating()[0])
        part, causes = "parameters", settings_within_rounding(scene)
    if causes:
        aligned = scene.aligned(part)
        worst = int(np.argmax(aligned.distances))
        allowed = scene.walk.curves[part].allowed[0]
        distance = float(aligned.distances[worst])
        first = Parting(part, scene.step, aligned.names[worst], *aligned.values(worst), distance, allowed)
        scene.walk.partings.insert(0, first)
    return causes


def _check(a: TappedRun, b: TappedRun) -> None:
    if a.seed != b.seed:
        raise FileError(
            f"parity.bisect: {a.path} was sampled with seed {a.seed} and {b.path} with {b.seed}: it "
            "must be one seed."
        )
    if not a.steps.keys() & b.steps.keys():
        ranges = [f"{min(run.steps, default=None)} to {max(run.steps, default=None)}" for run in (a, b)]
        raise FileError(
            f"parity.bisect: {a.path} has steps {ranges[0]} and {b.path} {ranges[1]}: none in common. Count "
            "both from the same number."
        )


def _judged(
    a: TappedRun,
    b: TappedRun,
    names: MatchedNames,
    walk: Walk,
    worlds: tuple[WorldSize, WorldSize] | None,
    causes: list[str],
) -> Bisection:
    first = walk.partings[0] if walk.partings else None
    types = _type_sentences(a, b)
    if first is not None:
        scene = Scene(a, b, names, walk, first.step)
        if worlds is not None:
            causes = world_causes(scene, first, worlds)
        if causes or first.step not in a.steps.keys() & b.steps.keys():
            pass
        elif first.part == "batch":
            causes = batch_causes(a, b, walk.steps, first.step)
        else:
            causes = CAUSES[first.part](scene)
        passes = first.part in ("loss", "gradients")
        if worlds is None and passes and all(text.startswith(GUESSES) for text in causes):
            in_turn = updates_in_turn(scene)
            # A setting changes what comes after the first update.
            is_later = not in_turn and first.step > walk.steps[0]
            earlier = _part_within_rounding(replace(scene, step=walk.steps[0])) if is_later else []
            causes = in_turn or earlier or causes
            first = walk.partings[0]
            since = first.step if walk.noisy_since is None else walk.noisy_since
            if since < first.step and causes and all(text.startswith(GUESSES) for text in causes):
                causes = [ROUNDING.format(listed(list(walk.noisy)))]
        if passes and types and all(text.startswith(CONSEQUENCES) for text in causes):
            causes = [f"perhaps {text} (parity.compare proves it)" for text in types]
            types = []
        if worlds is not None and passes and all(text.startswith(UNEXPLAINED) for text in causes):
            causes = guesses(scene, worlds)
    consequence = ", too" if first else ", which is harmless"
    return Bisection(
        a.path,
        b.path,
        first is None,
        None if first is None else first.step,
        None if first is None else first.part,
        tuple(causes),
        tuple(walk.partings),
        walk.curves,
        len(walk.steps),
        (*_notes(a, b, walk, worlds), *(f"types differ{consequence}: {text}" for text in types)),
        tuple(_unreached(a, b, names, walk)),
    )


def _type_sentences(a: TappedRun, b: TappedRun) -> list[str]:
    if not (a.types and b.types):
        return []
    return [x.text("in run A", "in run B") for x in together(differences(a.types, b.types))]


def _notes(a: TappedRun, b: TappedRun, walk: Walk, worlds: tuple[WorldSize, WorldSize] | None) -> list[str]:
    notes = [*a.notes, *b.notes]
    for one, other, label in ((a, b, "A"), (b, a, "B")):
        alone = sorted(one.steps.keys() - other.steps.keys())
        if alone:
            notes.append(f"steps {alone[0]} to {alone[-1]} ({len(alone)}) are in run {label} alone")
    losses = {k: (a.steps[k].loss, b.steps[k].loss) for k in sorted(a.steps.keys() & b.steps.keys())}
    lost = [k for k, pair in losses.items() if not any(x is None or math.isfinite(x) for x in pair)]
    if lost:
        notes.append(
            f"the loss of both runs is not finite in {len(lost)} steps (from {lost[0]} on), of which nothing "
            "can be compared"
        )
    if worlds is None and walk.partings and walk.partings[0].distance <= walk.partings[0].allowed:
        notes.append(
            "no array differs by more than rounding yet: small differences of all elements show the setting"
        )
    if walk.scaled:
        notes.append(
            f"the gradients of {len(walk.scaled)} steps (from {walk.scaled[0]} on) differ by a factor, and "
            "the parameters do not: one run taps them before clipping"
        )
    if worlds is not None:
        return [*notes, *narrow(a)]
    if a.world != b.world:
        notes.append(f"run A has {a.world} processes and run B {b.world}; rows are compared over all")
    return notes


def _unreached(a: TappedRun, b: TappedRun, names: MatchedNames, walk: Walk) -> list[str]:
    texts = list(names.unmatched)
    for part in ORDER:
        untapped = _untapped(a, b, part) if part not in walk.curves else ""
        if untapped and not (part == "extra" and untapped == "both runs"):
            texts.append(f"{QUANTITIES[part]}, which {untapped} did not tap")
    for run, label in ((a, "A"), (b, "B")):
        if "parameters" not in run.start.parts:
            texts.append(
                f"the parameters before the first step of run {label} (parity.Tap(folder, start=...))"
            )
    return texts


def _untapped(a: TappedRun, b: TappedRun, part: str) -> str:
    tapped = [
        any(part in s.parts or part in s.numbers or (part == "batch" and s.batch) for s in run.steps.values())
        for run in (a, b)
    ]
    return "both runs" if not any(tapped) else "run A" if not tapped[0] else "run B"
