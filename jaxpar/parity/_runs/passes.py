"""Name why the loss of a step differs, whose rows and parameters are the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .clipping import ADDED, gradient_limits
from .digests import sample_indices
from .envelope import UNITS, common_factor
from .matching import Aligned
from .operation_types import is_sum_of_bfloat16, representable
from .run import NORM, TappedRun
from .scene import Scene
from .terms import different_terms, weights_cause

NOISE = 1e-4
"""A gradient so much smaller than the others is rounding."""
NEAR_ONE = 0.05
"""Of 1 - cosine: gradients of a pass in a smaller type differ by less, with other dropout masks by more."""

STATISTICS = ("mean", "var", "running_mean", "running_var")
"""The last parts of the names of running statistics, in Flax and in torch."""

MOST_ALONE = 3
"""Parameters of one run that a sentence lists."""

NOTHING = 1e-3
"""The part of an array's size in the other run below which a gradient is rounding alone."""
FAR = 0.1
"""A change of a gradient's element, relative to its array, that is too large for a smaller type."""


def loss_causes(scene: Scene) -> list[str]:
    """Name why the loss differs: a reduction, another mode of a layer, a smaller type, random numbers."""
    x, y = (run.steps[scene.step].loss for run in (scene.a, scene.b))
    assert x is not None
    assert y is not None
    ratio = y / x if x else np.inf
    if not np.isfinite(y) or not np.isfinite(x):
        return [f"the loss of run {'A' if np.isfinite(y) else 'B'} is not finite"]
    tolerance = scene.walk.tolerance("gradients")
    gradients = scene.aligned("gradients")
    if cause := not_finite(gradients):
        return [cause]
    if gradients:
        factor, residue = common_factor(gradients)
        # A factor that rounding can make is not a cause, nor one that clipping by norm + 1e-6 makes.
        if residue <= tolerance and abs(factor - 1) <= max(tolerance, ADDED):
            if abs(ratio - 1) > tolerance and _is_of_all_steps(scene, ratio):
                return [_reported(scene, ratio)]
        elif residue <= tolerance:
            which = (
                "the loss and its gradients are"
                if abs(ratio - factor) <= 1e-3 * abs(factor)
                else "gradients are"
            )
            if which == "gradients are" and (name := reduction(scene, ratio)) and _clips(scene):
                return [f"the loss is {ratio:.6g} times as large in run B{name}; the gradients are clipped"]
            return [f"{which} {factor:.6g} times as large in run B{reduction(scene, factor)}"]
        if cause := _scaled_in_part(scene, gradients, ratio) or weights_cause(scene):
            return [cause]
        if cause := added_decay(scene, gradients):
            return [f"{cause}, as a penalty in the loss"]
        if cause := _smoothing(scene, gradients) or _smoothing_of_weight(scene):
            return [cause]
        if (name := reduction(scene, ratio, of_any_number=False)) and _clips(scene):
            return [f"the loss is {ratio:.6g} times as large in run B{name}; the gradients are clipped"]
    elif name := reduction(scene, ratio):
        return [f"the loss is {ratio:.6g} times as large in run B{name}"]
    causes = [*mode_causes(scene), *cast_causes(scene, ("gradients", "extra"))]
    return causes or [*_pass_causes(scene, gradients, abs(ratio - 1))]


def not_finite(gradients: Aligned) -> str:
    """Return which gradients have infinities or NaN in one run alone, if any have."""
    if not gradients:
        return ""
    finite = [np.isfinite(table.values[:, NORM]) for table in (gradients.a, gradients.b)]
    for run, broken in (("A", ~finite[0] & finite[1]), ("B", finite[0] & ~finite[1])):
        if broken.any():
            names = [gradients.names[i] for i in np.flatnonzero(broken)]
            return f"gradients of run {run} are not finite: {listed(names)}"
    return ""


def _clips(scene: Scene) -> bool:
    return any(any(gradient_limits(run, scene.walk.steps)) for run in (scene.a, scene.b))


def _is_of_all_steps(scene: Scene, ratio: float) -> bool:
    """Whether the losses always have this ratio, or gradients never part, which may agree once by chance."""
    if not any(parting.part == "gradients" for parting in scene.walk.partings):
        return True
    losses = [(scene.a.steps[k].loss, scene.b.steps[k].loss) for k in scene.walk.steps]
    return all(x and y and abs(y / x - ratio) <= 1e-3 * abs(ratio) for x, y in losses)


def _reported(scene: Scene, ratio: float) -> str:
    name = reduction(scene, ratio)
    limits = [gradient_limits(run, scene.walk.steps)[0] for run in (scene.a, scene.b)]
    if limits[0] and abs(limits[0] - limits[1]) <= ADDED * limits[0]:
        return (
            f"the loss is {ratio:.6g} times as large in run B{name}; its gradients are the same because both "
            f"runs clip them to a norm of {limits[0]:.4g}, or because the loss is reported otherwise"
        )
    text = f"only the reported loss differs ({ratio:.6g} times as large in run B{name})"
    return f"{text}; the gradients are the same"


def reduction(scene: Scene, factor: float, of_any_number: bool = True) -> str:
    """Return what the factor is: a number of rows or elements, and else a small number or a loss scale."""
    counts: dict[str, float] = {}
    for leaf in scene.a.steps[scene.step].batch.values():
        counts.setdefault("rows", float(leaf.digests.shape[1]))
        for shape in (leaf.shape, leaf.shape[1:]):
            counts[f"elements of {shape}"] = float(np.prod(shape))
        # The loss of several processes is the mean of theirs.
        counts[f"elements of {leaf.shape}, those of one process"] = np.prod(leaf.shape) / scene.b.world
    for text, count in counts.items():
        for value, run in ((count, "B"), (1 / count, "A")):
            if count > 2 and abs(factor - value) <= 1e-5 * value:
                scale = "; or a loss scale" if count >= 256 and np.log2(count).is_integer() else ""
                return f": run {run} has the sum where the other has the mean, over {count:.0f} {text}{scale}"
    if not of_any_number:
        return ""
    for count in range(2, 65):
        for value, run in ((float(count), "B"), (1.0 / count, "A")):
            if abs(factor - value) <= 1e-5 * value:
                return f": run {run} has a sum of {count} where run {'BA'[run == 'B']} has a mean"
    exponent = np.log2(abs(factor)) if factor else 0.5
    return ": a loss scale?" if abs(exponent - round(exponent)) < 1e-6 and round(exponent) else ""


def _scaled_in_part(scene: Scene, gradients: Aligned, ratio: float) -> str:
    """Return that the loss and some gradients differ by one factor, and the others not at all, if so."""
    scaled = []
    for name, x, y in zip(gradients.names, gradients.a.samples, gradients.b.samples, strict=True):
        factors = (1.0, ratio) if np.isfinite(ratio) else (1.0,)
        near = [np.abs(y - factor * x).max() <= 1e-4 * np.abs(factor * x).max() for factor in factors]
        if not any(near) or not gradients.sampled.all():
            return ""
        scaled += [name] * (not near[0])
    if not scaled:
        return ""
    factor = f"{ratio:.6g} times as large in run B{reduction(scene, ratio)}"
    return f"the loss and the gradients of {listed(scaled)} are {factor}; the other gradients are the same"


def added_decay(scene: Scene, gradients: Aligned) -> str:
    """Return that the gradients of one run include a multiple of the parameters, if they do."""
    before = scene.before()
    if not before or not set(gradients.names) <= set(before.a.names):
        return ""
    parameters = before.a.rows(gradients.names).samples[gradients.sampled]
    change = (gradients.b.samples - gradients.a.samples)[gradients.sampled]
    names = [gradients.names[i] for i in np.flatnonzero(gradients.sampled)]
    sizes = np.abs(change).max(1, initial=0.0)
    touched = sizes > 1e-6 * sizes.max(initial=0.0)
    x, y = parameters[touched], change[touched]
    if np.unique(x).size < 3:  # which always are a multiple of one another, or nearly
        return ""
    decay = float(np.vdot(x, y)) / max(float(np.vdot(x, x)), 1e-300)
    rounding = 8 * scene.walk.unit * scene.walk.level * float(np.abs(gradients.a.samples).max(initial=0.0))
    if not decay or np.abs(y - decay * x).max(initial=0.0) > 1e-5 * np.abs(y).max(initial=0.0) + rounding:
        return _clipped_decay(parameters, gradients, rounding) if _clips(scene) else ""
    decayed = [name for name, other in zip(names, touched, strict=True) if other]
    suffix = "" if len(decayed) == len(names) else f", for {listed(decayed)}"
    run = "B" if decay > 0 else "A"
    return f"weight decay: run {run} adds {abs(decay):.5g} times the parameters to the gradients{suffix}"


def _clipped_decay(parameters: np.ndarray, gradients: Aligned, rounding: float) -> str:
    """Return that the gradients of one run include a multiple of the parameters, before both are clipped.

    Neither factor of clipping is in the tap, so the multiple is not, either.
    """
    before, after = (table.samples[gradients.sampled].ravel() for table in (gradients.a, gradients.b))
    terms = np.stack([before, parameters.ravel()], 1)
    factors = np.linalg.lstsq(terms, after)[0]
    change = float(np.abs(after - factors[0] * before).max(initial=0.0))
    if (
        np.abs(terms @ factors - after).max(initial=0.0) > 1e-5 * change + rounding
        or change <= 100 * rounding
    ):
        return ""
    run = "B" if factors[0] * factors[1] > 0 else "A"
    return f"weight decay: run {run} adds a multiple of the parameters to the gradients"


def _smoothing(scene: Scene, gradients: Aligned) -> str:
    """Return that one run smooths its labels, if the gradient of the output's bias differs as it then does.

    Cross-entropy with the labels (1 - s) * y + s / classes moves it by s * (frequencies - 1 / classes).
    """
    clips = any(gradient_limits(scene.a, scene.walk.steps))
    for leaf in scene.a.steps[scene.step].batch.values():
        labels = leaf.full
        if labels is None or labels.dtype.kind not in "iu" or labels.ndim != 1 or labels.min(initial=0) < 0:
            continue
        for i, shape in enumerate(gradients.a.shapes):
            if len(shape) != 1 or not labels.max(initial=0) < shape[0] <= 1 << 16:
                continue
            moved = np.bincount(labels, minlength=shape[0]) / len(labels) - 1 / shape[0]
            x = moved[sample_indices(shape, scene.a.seed)]
            before, after = gradients.a.samples[i], gradients.b.samples[i]
            share = float(x @ (after - before)) / max(float(x @ x), 1e-300)
            if share and np.abs(after - before - share * x).max() <= 1e-4 * np.abs(after - before).max():
                run = "B" if share > 0 else "A"
                return f"label smoothing: run {run} smooths labels by {abs(share):.4g} more"
            if clips and len(x) > 3:
                # Neither run's factor of clipping is known, so the share is not, either.
                terms = np.stack([before, x], 1)
                factors = np.linalg.lstsq(terms, after)[0]
                if np.abs(terms @ factors - after).max() <= 1e-4 * np.abs(after - factors[0] * before).max():
                    run = "B" if factors[1] > 0 else "A"
                    return f"label smoothing: run {run} smooths labels more"
    return ""


def _smoothing_of_weight(scene: Scene) -> str:
    """Return that one run smooths its labels, by the output's weight, of which the step has all elements.

    Smoothing by s moves the gradient of a class without a label by -s / classes times the mean features: by
    the same for all such classes, which no other change of a loss does, and otherwise for the other classes.
    """
    steps = [run.steps[scene.step] for run in (scene.a, scene.b)]
    gradients = [step.full.get("gradients", {}) for step in steps]
    codes = [leaf.full.ravel() for leaf in steps[0].batch.values() if leaf.full is not None]
    codes = [x for x in codes if x.dtype.kind in "iu" and x.size]
    # A weight that is also the embedding has gradients for the classes among the inputs, too.
    for labels in [*codes, np.concatenate(codes)] if codes else []:
        for name, other in scene.names.pairs.get("gradients", []):
            x, y = gradients[0].get(name), gradients[1].get(other)
            if x is None or y is None or x.ndim != 2 or x.size != y.size:
                continue
            y = y if y.shape == x.shape else y.T
            for before, after in ((x, y), (x.T, y.T)):
                if before.shape == after.shape and (run := _smoother(before, after, labels)):
                    return f"label smoothing: run {run} smooths labels more"
    return ""


def _smoother(before: np.ndarray, after: np.ndarray, labels: np.ndarray) -> str:
    """Return the run that smooths its labels more, by the gradients [classes, features] of both runs."""
    if labels.max() >= len(before):
        return ""
    unlabelled = np.isin(np.arange(len(before)), labels, invert=True)
    change = after.astype(np.float64) - before
    moved = change[unlabelled]
    if unlabelled.all() or len(moved) < 2 or moved.size < 6:
        return ""
    size = np.abs(moved[0]).max()
    is_smoothed = size > 0 and np.abs(moved - moved[0]).max() <= 1e-3 * size
    if not is_smoothed or np.abs(change[~unlabelled] - moved[0]).max() <= 1e-2 * size:
        return ""
    # Without smoothing the gradient has the direction of the features, because probabilities are positive.
    return "A" if np.vdot(moved, before[unlabelled]) > 0 else "B"


def listed(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (" and others" if len(names) > most else "")


def mode_causes(scene: Scene) -> Iterator[str]:
    """Name a BatchNorm in evaluation mode: one run's running statistics never change."""
    still = [unchanged(run, "extra") for run in (scene.a, scene.b)]
    for i, name in enumerate("AB"):
        names = {_label(scene, leaf, i) for leaf in still[i]} - {
            _label(scene, leaf, 1 - i) for leaf in still[1 - i]
        }
        names = {leaf for leaf in names if leaf.split(".")[-1] in STATISTICS}
        if names:
            yield (f"BatchNorm is in evaluation mode in run {name}: {listed(sorted(names))} never changes")
            return


def _label(scene: Scene, leaf: str, side: int) -> str:
    pairs = scene.names.pairs.get("extra", [])
    return next((pair[0] for pair in pairs if pair[side] == leaf), "")


def unchanged(run: TappedRun, part: str) -> set[str]:
    """Return the arrays that are the same in all steps, and before the first."""
    tables = [step.parts[part] for step in [run.start, *run.steps.values()] if part in step.parts]
    if len(tables) < 2:
        return set()
    first = tables[0]
    return {
        name
        for i, name in enumerate(first.names)
        if all(
            name in t.names and np.array_equal(t.rows([name]).values[0], first.values[i], True)
            for t in tables
        )
    }


def cast_causes(scene: Scene, parts: Sequence[str]) -> Iterator[str]:
    """Name arrays that one run alone holds in a smaller type, by their types or by their values."""
    for part in parts:
        aligned = scene.aligned(part)
        leaves: dict[str, list[str]] = {}
        for i, leaf in enumerate(aligned.names):
            types = aligned.a.dtypes[i], aligned.b.dtypes[i]
            # Rounding alone, such as the gradient of a bias before BatchNorm, has few bits in any type.
            norm = min(table.values[i, NORM] for table in (aligned.a, aligned.b))
            large = norm > NOISE * aligned.rms[i] * np.sqrt(aligned.a.sizes[i])
            kinds = [representable(table.samples[i]) if large else "" for table in (aligned.a, aligned.b)]
            for side, run in enumerate("AB"):
                if UNITS.get(types[side], 0.0) > UNITS.get(types[1 - side], 1.0):
                    text = f"are {types[side]} in run {run} and {types[1 - side]} in run {'BA'[side]}"
                    leaves.setdefault(text, []).append(leaf)
                elif kinds[side] and not kinds[1 - side] and types[0] == types[1]:
                    kind = kinds[side]
                    if kind == "float16" and is_sum_of_bfloat16((aligned.a, aligned.b)[side].samples):
                        kind = "bfloat16 before a sum over micro batches or processes"
                    leaves.setdefault(f"are rounded to {kind} in run {run}", []).append(leaf)
        yield from (f"{part} {text}: {listed(names)}" for text, names in leaves.items())
        if leaves:
            return


def _pass_causes(scene: Scene, gradients: Aligned, change: float) -> Iterator[str]:
    """Name what is possible if nothing is proven."""
    shown = different_terms(scene) + untied(scene)
    rounding = False
    if gradients:
        x, y = gradients.a.samples[gradients.sampled], gradients.b.samples[gradients.sampled]
        norms = float(np.linalg.norm(x) * np.linalg.norm(y))
        cosine = float(np.vdot(x, y)) / norms if norms else 0.0
        is_small = 1 - cosine < NEAR_ONE * 0.01 and change < 2.0**-6 and not _is_far(gradients)
        rounding = is_small and not _is_sudden(scene, change)
    if rounding:
        yield (
            f"the forward pass differs by little, the loss by {change:.2g}: one run rounds more, as a "
            "smaller type in a part makes it (bfloat16, float16, TF32), or a constant of the model or the "
            f"loss differs (an epsilon, a weight){shown}. parity.compare finds the layer"
        )
        return
    earlier = [k for k in scene.walk.steps if k < scene.step]
    if earlier:
        yield (
            f"the forward pass differs from step {scene.step} on, not before: a run carries something from "
            "step to step that is not tapped (a hidden state, a target network, random numbers), or computes "
            "what earlier rows did not need; rows, parameters, reduction, buffers and types do not explain it"
            f"{shown}"
        )
    else:
        yield (
            "the forward pass differs: dropout (its masks, seed or mode) or another computation; rows, "
            f"parameters, reduction, buffers and types do not explain it{shown}. parity.compare finds the "
            "layer"
        )


def _is_far(gradients: Aligned) -> bool:
    """Whether the gradients of an array differ by more than a smaller type makes them.

    What is rounding alone, such as the gradient of a key's bias before softmax, is larger in a smaller type.
    """
    norms = np.minimum(gradients.a.values[:, NORM], gradients.b.values[:, NORM]) / np.sqrt(gradients.a.sizes)
    counted = norms > NOTHING * gradients.rms
    return bool(gradients.distances[counted].max(initial=0.0) >= FAR)


def _is_sudden(scene: Scene, change: float) -> bool:
    """Whether the losses were much closer in all steps before, as they are not where one run rounds more."""
    curve = scene.walk.curves["loss"]
    earlier = [d for k, d in zip(curve.steps, curve.distances, strict=True) if k < scene.step]
    return bool(earlier) and max(earlier) < 0.01 * change


def untied(scene: Scene) -> str:
    """Return the parameters that one run alone has, as tied weights are one parameter or two."""
    alone = [
        text.removeprefix("parameters ") for text in scene.names.unmatched if text.startswith("parameters ")
    ]
    return f"; {'; '.join(alone[:MOST_ALONE])} (are weights tied in one run?)" if alone else ""
