"""Name why one script trains differently in two worlds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .batches import sequence
from .clipping import FORMS, gradient_limits, magnitudes
from .envelope import Parting, common_factor
from .passes import listed
from .run import TappedStep
from .scene import Scene
from .worlds import START, WorldSize, processes_apart, row_count

IGNORED = (0, -100, -1)
"""Values by which labels and masks leave positions out."""


def world_causes(scene: Scene, first: Parting, worlds: tuple[WorldSize, WorldSize]) -> list[str]:
    """Name what is proven about the first quantity that differs; nothing else is returned."""
    if first.step == START:
        return ["the parameters differ before the first step: a seed that depends on the process?"]
    if first.part == "batch":
        return list(_row_causes(scene, worlds))
    for name, run in (("A", scene.a), ("B", scene.b)):
        if processes_apart(run, scene.step, scene.walk):
            return [
                f"the processes of run {name} hold different gradients or parameters: they are not averaged "
                "over processes (do they join one group?)"
            ]
    causes = {
        "loss": _loss_causes,
        "gradients": _gradient_causes,
        "rate": _rate_causes,
        "parameters": _update_causes,
        "optimizer": _update_causes,
        "extra": _extra_causes,
    }
    return list(causes[first.part](scene, worlds))[:1]


# ------------------------------------------------------------------------------------------------- factors


def _counted(factor: float, worlds: tuple[WorldSize, WorldSize]) -> tuple[int, str]:
    """Return the number and the name of the things whose number explains a factor; or 0 and nothing."""
    a, b = worlds
    things = {
        "accumulated batches": (a.accumulate, b.accumulate),
        "devices": (a.processes * a.devices, b.processes * b.devices),
        "processes": (a.processes, b.processes),
        "devices of a process": (a.devices, b.devices),
    }
    if a.devices == b.devices:
        del things["devices"]
    for thing, (one, other) in things.items():
        if one != other and abs(factor * one - other) <= 1e-5 * other:
            return max(one, other), thing
    return 0, ""


def _reduced(what: str, factor: float, worlds: tuple[WorldSize, WorldSize]) -> Iterator[str]:
    text = f"{what} {factor:.6g} times as large in run B"
    number, thing = _counted(factor, worlds)
    if thing:
        yield f"{text}: a sum over the {number} {thing} where a mean is meant"
        return
    number, thing = _counted(1 / factor if factor else 0.0, worlds)
    if thing:
        yield f"{text}: divided by the number of {thing} ({number}) once more"


# --------------------------------------------------------------------------------------------------- rows


def _row_causes(scene: Scene, worlds: tuple[WorldSize, WorldSize]) -> Iterator[str]:
    a, b, k = scene.a, scene.b, scene.step
    if k not in a.steps or k not in b.steps:
        name, other, run = ("B", "A", a) if k in a.steps else ("A", "B", b)
        usual = max(row_count(step) for step in run.steps.values())
        rows = row_count(run.steps[k])
        last = f": the last batch is dropped in run {name}" if rows < usual else ""
        yield f"run {name} has no step {k}, in which run {other} takes {rows} rows{last}"
        return
    counts = row_count(a.steps[k]), row_count(b.steps[k])
    if counts != tuple(max(map(row_count, run.steps.values())) for run in (a, b)):
        return  # the last batch
    number, thing = _counted(counts[1] / max(counts[0], 1), worlds)
    ids = sequence(b, a, [k])[0]
    if thing and len(np.unique(ids)) * number <= len(ids):
        yield f"run B takes {counts[1]} rows, each in all {number} {thing}: no sampler divides the rows"
    elif thing:
        yield (
            f"run B takes {counts[1]} rows and run A {counts[0]}: the batch size is for each of the {number} "
            f"{thing}, and not for all"
        )


# --------------------------------------------------------------------------------- the loss, the gradients


def _loss_causes(scene: Scene, worlds: tuple[WorldSize, WorldSize]) -> Iterator[str]:
    x, y = (run.steps[scene.step].loss for run in (scene.a, scene.b))
    assert x is not None
    assert y is not None
    factor, same = _factor(scene)
    ratio = y / x if x else np.inf
    tolerance = scene.walk.tolerance("gradients")
    if same and abs(factor - 1) <= tolerance:
        named = list(_reduced("only the reported loss differs: it is", ratio, worlds))
        spread = "its processes report" if len(set(scene.b.steps[scene.step].losses)) > 1 else "it is"
        yield from named or [
            f"only the reported loss differs ({ratio:.6g} times as large in run B), not the gradients: "
            f"{spread} the loss of a device or process, not reduced over all"
        ]
    elif same:
        yield from _reduced("the loss and its gradients are", factor, worlds)
    elif not scene.aligned("gradients"):
        yield from _reduced("the loss is", ratio, worlds)
    yield from _unequal_parts(scene, worlds)
    yield from _denominators(scene)


def _factor(scene: Scene) -> tuple[float, bool]:
    """Return the factor between the gradients, and whether there is one."""
    gradients = scene.aligned("gradients")
    if not gradients:
        return 0.0, False
    factor, residue = common_factor(gradients)
    return factor, residue <= scene.walk.tolerance("gradients")


def _unequal_parts(scene: Scene, worlds: tuple[WorldSize, WorldSize]) -> Iterator[str]:
    """Name parts of different sizes whose means count alike: all earlier batches divide evenly."""
    steps = [k for k in scene.walk.steps if k <= scene.step]
    for name, run, world in (("B", scene.b, worlds[1]), ("A", scene.a, worlds[0])):
        uneven = [k for k in steps if row_count(run.steps[k]) % world.parts()]
        if uneven == steps[-1:] and len(steps) > 1:
            rows = row_count(run.steps[scene.step])
            yield (
                f"the {rows} rows of step {scene.step} are divided into {world.parts()} parts that are not "
                f"equal, and their means count alike in run {name}; the batches before divide evenly"
            )
            return


def _denominators(scene: Scene) -> Iterator[str]:
    """Name the counts by which the losses of processes or accumulated batches must be weighted."""
    for name, run, other in (("B", scene.b, scene.a), ("A", scene.a, scene.b)):
        step, all_loss = run.steps[scene.step], other.steps[scene.step].loss
        losses = np.array(step.losses)
        if len(losses) < 2 or all_loss is None or np.ptp(losses) == 0:
            continue
        for leaf, text, weights in _weights(step, len(losses)):
            if abs(np.vdot(weights, losses) / weights.sum() - all_loss) <= 1e-9 * abs(all_loss):
                numbers = ", ".join(f"{w:g}" for w in weights[:8])
                yield (
                    f"the loss is divided by the {text} of {leaf}, and the parts of run {name} have "
                    f"{numbers}: a mean of ratios is not the ratio of sums"
                )
                return


def _weights(step: TappedStep, parts: int) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield counts in which the parts of a batch differ."""
    for leaf, x in step.batch.items():
        if x.full is None or len(x.full) % parts:
            continue
        pieces = x.full.reshape(parts, -1)
        options = {f"elements other than {value}": (pieces != value).sum(1) for value in IGNORED}
        if np.isin(pieces, (0, 1)).all():
            options = {"ones": pieces.sum(1)}
        for text, weights in options.items():
            if np.ptp(weights) > 0 and weights.sum() > 0:
                yield f"batch.{leaf}" if leaf else "the batch", text, weights.astype(float)


def guesses(scene: Scene, worlds: tuple[WorldSize, WorldSize]) -> list[str]:
    """Return what nothing excludes, for a loss or gradients of equal rows and parameters."""
    b = worlds[1]
    step = scene.b.steps.get(scene.step)
    if step is None:
        return []
    parts = b.parts()
    if row_count(step) % parts:
        return [f"perhaps: {row_count(step)} rows are divided into {parts} parts whose means count alike"]
    unequal = [f"{text} of {leaf}" for leaf, text, _ in _weights(step, parts)] if parts > 1 else []
    if unequal:
        return [
            f"perhaps: the loss is divided by a count that differs between the parts of a batch, such as the "
            f"{unequal[0]}: a mean of ratios is not the ratio of sums"
        ]
    return ["perhaps: the loss or its gradients are no mean over equal parts of the batch"]


def _gradient_causes(scene: Scene, worlds: tuple[WorldSize, WorldSize]) -> Iterator[str]:
    factor, same = _factor(scene)
    if same:
        yield from _reduced("gradients are", factor, worlds)
    else:
        yield from _clipped_parts(scene)
        yield from _unequal_parts(scene, worlds)
        yield from _denominators(scene)


def _clipped_parts(scene: Scene) -> Iterator[str]:
    """Name clipping before the mean: run A meets a limit, and run B's mean of clipped parts stays lower."""
    limits = gradient_limits(scene.a, scene.walk.steps)
    largest = [magnitudes(run.steps[scene.step].parts["gradients"]) for run in (scene.a, scene.b)]
    for i, form in enumerate(FORMS):
        limit = limits[i]
        if limit and largest[0][i] >= limit * (1 - 2e-5) and largest[1][i] < limit * (1 - 1e-9):
            yield (
                f"gradients are clipped before they are averaged: run A limits {form} to {limit:.4g}, and "
                f"the mean of run B's clipped parts has {largest[1][i]:.4g}"
            )
            return


# -------------------------------------------------------------------------------------------------- updates


def _rate_causes(scene: Scene, worlds: tuple[WorldSize, WorldSize]) -> Iterator[str]:
    x, y = (next(iter(run.steps[scene.step].numbers["rate"].values())) for run in (scene.a, scene.b))
    yield from _scaled_rate(y / x if x else np.inf, worlds)


def _scaled_rate(ratio: float, worlds: tuple[WorldSize, WorldSize]) -> Iterator[str]:
    for power, text in ((1.0, "the number"), (2.0, "the root of the number")):
        for value in (ratio**power, ratio**-power if ratio else 0.0):
            number, thing = _counted(value, worlds)
            if thing:
                yield (
                    f"the learning rate is {ratio:.6g} times as large in run B: it is scaled by {text} of "
                    f"{thing} ({number})"
                )
                return


def _update_causes(scene: Scene, worlds: tuple[WorldSize, WorldSize]) -> Iterator[str]:
    after, before = scene.aligned("parameters"), scene.before()
    if not after or not before or not set(after.names) <= set(before.a.names):
        return
    change = [
        (y.samples - x.rows(y.names).samples)[after.sampled]
        for x, y in ((before.a, after.a), (before.b, after.b))
    ]
    square = float(np.vdot(change[0], change[0]))
    factor = float(np.vdot(*change)) / square if square else 0.0
    size = float(np.abs(change[1]).max(initial=0.0))
    if not size or np.abs(change[1] - factor * change[0]).max() > 1e-6 * size:
        return
    if scene.aligned("gradients"):
        yield from _scaled_rate(factor, worlds)
    else:
        for text in _reduced("updates are", factor, worlds):
            yield f"{text}, or the learning rate is scaled by it (gradients were not tapped)"


def _extra_causes(scene: Scene, worlds: tuple[WorldSize, WorldSize]) -> Iterator[str]:
    after = scene.aligned("extra")
    tolerance = scene.walk.tolerance("gradients")
    different = [i for i, d in enumerate(after.distances) if d > tolerance]
    names = listed([after.names[i] for i in different])
    for name, run, other in (("B", scene.b, after.a), ("A", scene.a, after.b)):
        tables = [t.rows(after.names) for t in run.steps[scene.step].ranks.get("extra", [])]
        means = np.mean([t.samples[different] for t in tables], 0) if len(tables) > 1 else np.nan
        if np.allclose(means, other.samples[different], rtol=1e-9, atol=0):
            yield f"{names} is not reduced over the processes of run {name}: their mean is the other's value"
            return
    yield from _averages(scene, different, worlds)
    ratios = {
        round(float(y / x), 9)
        for i in different
        for x, y in [(after.a.samples[i, 0], after.b.samples[i, 0])]
        if x
    }
    if len(ratios) == 1:
        yield from _reduced(f"{names} is", ratios.pop(), worlds)


def _averages(scene: Scene, different: Sequence[int], worlds: tuple[WorldSize, WorldSize]) -> Iterator[str]:
    """Name an average of the parameters that moves more than once an update."""
    names = [scene.aligned("extra").names[i] for i in different]
    decays = [_decay(run.before(scene.step), run.steps[scene.step], names) for run in (scene.a, scene.b)]
    if min(decays) > 0 and max(decays) < 1:
        number, thing = _counted(float(np.log(decays[1]) / np.log(decays[0])), worlds)
        if thing:
            yield (
                f"{listed(names)} averages the parameters once for each of the {number} {thing}, and not "
                "once an update"
            )


def _decay(before: TappedStep, after: TappedStep, names: Sequence[str]) -> float:
    """Return d of `average = d average + ... + (1 - d) parameters`; 0 if the arrays are no such average."""
    steps = before.parts, after.parts
    if not all({"extra", "parameters"} <= tables.keys() for tables in steps):
        return 0.0
    columns = []
    for name in names:
        leaves = [n for n in after.parts["parameters"].names if name == n or name.endswith(f".{n}")]
        if leaves and name in before.parts["extra"].names:
            leaf = max(leaves, key=len)
            rows = [(0, "extra", name), (0, "parameters", leaf), (1, "parameters", leaf), (1, "extra", name)]
            columns.append(np.stack([steps[i][part].rows([n]).samples[0] for i, part, n in rows]))
    if not columns:
        return 0.0
    *columns, average = np.concatenate(columns, 1)
    solution, _, rank, _ = np.linalg.lstsq(np.stack(columns, 1), average, rcond=1e-9)
    if np.abs(np.stack(columns, 1) @ solution - average).max() > 1e-6 * np.abs(average).max():
        return 0.0
    # At first the average is the parameters themselves, and only the new ones' share is known.
    return float(solution[0] if rank == 3 else 1 - solution[2])
