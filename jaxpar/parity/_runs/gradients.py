"""Name why the gradients of a step differ at an equal loss."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .clipping import clip_cause
from .envelope import common_factor
from .matching import Aligned
from .passes import FAR, added_decay, cast_causes, listed, not_finite, reduction, untied
from .run import NORM, TappedRun
from .scene import Scene


def gradient_causes(scene: Scene) -> list[str]:
    """Name why the gradients differ at an equal loss."""
    aligned = scene.aligned("gradients")
    tolerance = scene.walk.tolerance("gradients")
    ranks = [_ranks_differ(run, scene.step, tolerance) for run in (scene.a, scene.b)]
    for i, name in enumerate("AB"):
        if ranks[i] and not ranks[1 - i]:
            return [
                f"the processes of run {name} have different gradients: they are not averaged over processes"
            ]
    if cause := not_finite(aligned):
        return [cause]
    if causes := list(_zero_causes(scene, aligned)) or list(_absent_causes(scene)):
        return causes
    if cause := _not_reset(scene, aligned):
        return [cause]
    if cause := clip_cause(scene):
        return [cause]
    factor, residue = common_factor(aligned)
    if residue <= tolerance < abs(factor - 1):
        return [f"gradients are {factor:.6g} times as large in run B{reduction(scene, factor)}"]
    if cause := added_decay(scene, aligned):
        return [cause]
    if causes := list(cast_causes(scene, ("gradients",))):
        return causes
    return list(_partial_causes(scene, aligned, tolerance))


def _ranks_differ(run: TappedRun, step: int, tolerance: float) -> bool:
    tables = run.steps[step].ranks.get("gradients", [])
    return any(
        np.abs(table.values[:, NORM] - tables[0].values[:, NORM]).max()
        > tolerance * tables[0].values[:, NORM].max()
        for table in tables[1:]
        if table.values.shape == tables[0].values.shape
    )


def _zero_causes(scene: Scene, aligned: Aligned) -> Iterator[str]:
    for i, name in enumerate("AB"):
        table, other = (aligned.a, aligned.b) if i == 0 else (aligned.b, aligned.a)
        zero = (table.values[:, NORM] == 0) & (other.values[:, NORM] > 0)
        if zero.any() and not zero.all():
            leaves = [aligned.names[j] for j in np.flatnonzero(zero)]
            steps = [_steps_with_gradient(scene, leaves[0], side) for side in (0, 1)]
            if steps[i]:
                texts = [
                    f"in {len(x)} steps of run {run} (from {x[0]} on)"
                    for x, run in zip(steps, "AB", strict=True)
                ]
                yield f"{listed(leaves)} has a gradient {' and '.join(texts)}: how often is it trained?"
            else:
                yield f"{listed(leaves)} has no gradient in run {name}: frozen, or cut off (stop_gradient)"


def _steps_with_gradient(scene: Scene, name: str, side: int) -> list[int]:
    """Return the steps in which a run has a gradient other than 0 of a parameter, by its name in run A."""
    pair = next(pair for pair in scene.names.pairs["gradients"] if pair[0] == name)
    steps = (scene.a, scene.b)[side].steps
    tables = {k: steps[k].parts.get("gradients") for k in scene.walk.steps}
    return [
        k
        for k, t in tables.items()
        if t and pair[side] in t.names and t.rows([pair[side]]).values[0, NORM] > 0
    ]


def _absent_causes(scene: Scene) -> Iterator[str]:
    """Name parameters of both runs that have a gradient in one of them alone."""
    tables = [run.steps[scene.step].parts["gradients"] for run in (scene.a, scene.b)]
    for i, run in enumerate("AB"):
        names = [
            pair[0]
            for pair in scene.names.pairs.get("parameters", [])
            if pair[i] in tables[i].names and pair[1 - i] not in tables[1 - i].names
            if tables[i].rows([pair[i]]).values[0, NORM] > 0
        ]
        if names:
            yield (
                f"{listed(names)} has a gradient in run {run} alone: run {'BA'[i]} does not train it "
                "(requires_grad, a frozen part), and a norm that is clipped does not include it"
            )


def _not_reset(scene: Scene, aligned: Aligned) -> str:
    """Return that one run adds its gradients of the step before, which may be clipped, if it does."""
    earlier = [k for k in scene.walk.steps if k < scene.step]
    previous = earlier and scene.aligned("gradients", earlier[-1])
    if not previous or previous.names != aligned.names:
        return ""
    current, last = (
        [table.samples[aligned.sampled].ravel() for table in (x.a, x.b)] for x in (aligned, previous)
    )
    for i, name in enumerate("AB"):
        parts = np.stack([current[1 - i], last[i]], 1)
        (share, added), *_ = np.linalg.lstsq(parts, current[i])
        error = np.linalg.norm(parts @ (share, added) - current[i]) / np.linalg.norm(current[i])
        if error <= 8 * scene.walk.tolerance("gradients") and share > 0 and added > 0.01 * share:
            return (
                f"run {name} adds the gradients of the step before: they are not set to zero (zero_grad), or "
                "accumulate over updates"
            )
    return ""


def _grown(scene: Scene) -> str:
    """Return how to exclude that rounding has grown, where a later step differs by little more than that."""
    first = scene.walk.partings[0]
    is_near = first.distance < 4 * first.allowed and scene.walk.steps[0] < scene.step
    return "; or rounding has grown faster than usual, which --nudged or float64 shows" if is_near else ""


def _partial_causes(scene: Scene, aligned: Aligned, tolerance: float) -> Iterator[str]:
    different = [name for name, d in zip(aligned.names, aligned.distances, strict=True) if d > tolerance]
    which = f" of {listed(different)}" if len(different) < len(aligned.names) else ""
    if aligned.distance < FAR:
        moment = ", or takes them before or after an update of the others" if which else ""
        yield (
            f"gradients differ by little (by {aligned.distance:.2g}{which}) at the same loss: one run rounds "
            f"more, or has an approximation or another constant (a form of GELU, an epsilon){moment}"
            f"{_grown(scene)}"
        )
        return
    only = "only " if which else ""
    several = len(scene.a.steps[scene.step].losses) > 1
    batches = ", or adds up other batches" if several else ""
    yield (
        f"{only}the gradients{which} differ, at the same loss: one run cuts a part of it off (detach, "
        "stop_gradient), has another backward pass there, or changes gradients before they are tapped"
        f"{batches}{untied(scene)}"
    )
