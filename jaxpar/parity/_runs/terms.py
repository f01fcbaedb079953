"""Terms of the loss that are tapped as numbers of their own: which ones differ, and their weights."""

from __future__ import annotations

import numpy as np

from .._loops.changes import renamed
from .._loops.fitting import Fit
from .._loops.rates import rate_changes
from .run import MEAN, TappedRun
from .scene import Scene

FITS = 1e-5
"""The part of a loss that its weighted terms may leave unexplained."""
MOST, LEAST = 4, 5
"""Terms of which weights are computed, and steps that show a weight that moves."""
NONE = 1e-4
"""A weight that rounding makes of none."""


def weights_cause(scene: Scene) -> str:
    """Return how each run weights the terms of its loss, if every loss is a sum of them, and they differ."""
    pairs = _scalars(scene)
    fitted = [_weights(run, [pair[i] for pair in pairs]) for i, run in enumerate((scene.a, scene.b))]
    weights = [np.where(np.abs(x) > NONE, x, 0.0) for x in fitted if x is not None]
    if len(weights) < 2:
        return next(filter(None, (_moving_weight(scene, pairs, i) for i in range(len(pairs)))), "")
    if np.allclose(weights[0], weights[1], 1e-3, 1e-6):
        return ""
    sums = [
        " + ".join(f"{x:.4g} * {pair[0]}" for x, pair in zip(row, pairs, strict=True) if x) for row in weights
    ]
    return f"run A's loss is {sums[0]}, run B's is {sums[1]}"


def _moving_weight(scene: Scene, pairs: list[tuple[str, str]], i: int) -> str:
    """Return how the weight of a term moves in both runs, if the others have the weight 1, and it differs."""
    series = []
    tables = [_terms(run, [pair[j] for pair in pairs]) for j, run in enumerate((scene.a, scene.b))]
    steps = [k for k in scene.walk.steps if all(k in table for table in tables)]
    if len(pairs) < 2 or len(steps) < LEAST:
        return ""
    for table in tables:
        terms, losses = _columns([table[k] for k in steps])
        if not terms[:, i].all():
            return ""
        weighted = losses - terms.sum(1) + terms[:, i]
        series.append((weighted / terms[:, i], 8 * scene.walk.unit * np.abs(losses / terms[:, i])))
    (one, bounds), (other, others) = series
    moves = np.diff(one)
    if not ((moves > -bounds[1:]).all() or (moves < bounds[1:]).all()) or one.min() < -bounds.max():
        return ""
    bounds = bounds + others
    unequal = np.flatnonzero(np.abs(one - other) > bounds)
    if not len(unequal):
        return ""
    fit = Fit({"weight": list(other)}, {"weight": list(bounds)})
    ratio = float(other[unequal[-1]] / one[unequal[-1]]) if one[unequal[-1]] else 0.0
    if ratio and (np.abs(other - ratio * one) <= 2 * bounds).all():
        text = f"run B's is {ratio:.4g} times as large"
    elif sentences := rate_changes({"weight": list(one)}, fit):
        text = renamed(sentences[0], "run A", "run B").replace("the rate's", "its").replace("rate", "weight")
    else:
        k = unequal[0]
        text = f"{one[k]:.4g} in run A and {other[k]:.4g} in run B in step {steps[k]}"
    return f"the weight of {pairs[i][0]} in the loss: {text}"


def different_terms(scene: Scene) -> str:
    """Return which tapped numbers agree and which do not, as the end of a sentence about the loss."""
    texts, agreeing = _compared(scene)
    if not texts:
        return f"; {', '.join(agreeing[:MOST])} agree{'s' * (len(agreeing) == 1)}" if agreeing else ""
    return f"; of the numbers beside it {_joined(texts, agreeing)}"


def terms_cause(scene: Scene) -> str:
    """Return which tapped numbers differ where the loss does not, as in a step that gives them no weight."""
    texts, agreeing = _compared(scene)
    return _joined(texts, agreeing) if texts else ""


def _joined(texts: list[str], agreeing: list[str]) -> str:
    same = f", and {', '.join(agreeing[:MOST])} the same" if agreeing else ""
    return f"{', '.join(texts[:MOST])}{same}"


def _compared(scene: Scene) -> tuple[list[str], list[str]]:
    """Return sentences about the numbers that differ, and the names of the others."""
    after = scene.aligned("extra")
    names = {pair[0] for pair in _scalars(scene)}
    texts, agreeing = [], []
    for i, name in enumerate(after.names):
        x, y = (float(table.values[i, MEAN]) for table in (after.a, after.b))
        if name not in names or not np.isfinite((x, y)).all():
            continue
        if abs(x - y) <= scene.walk.tolerance("loss") * max(abs(x), abs(y)):
            agreeing.append(name)
        else:
            size = f"{y / x:.6g} times as large" if x else f"{y:.4g} for 0"
            texts.append(f"{name} is {size} in run B")
    return texts, agreeing


def _scalars(scene: Scene) -> list[tuple[str, str]]:
    """Return the names of floating numbers that both runs tap in this step."""
    after = scene.aligned("extra")
    if not after:
        return []
    numbers = {
        name
        for name, shape, dtype in zip(after.names, after.a.shapes, after.a.dtypes, strict=True)
        if shape == () and "float" in dtype
    }
    return [pair for pair in scene.names.pairs.get("extra", []) if pair[0] in numbers]


def _terms(run: TappedRun, names: list[str]) -> dict[int, np.ndarray]:
    """Return the terms and last the loss of each step in which all are finite numbers."""
    rows = {
        k: np.append(step.parts["extra"].rows(names).values[:, MEAN], step.loss)
        for k, step in run.steps.items()
        if step.loss is not None and "extra" in step.parts and set(names) <= set(step.parts["extra"].names)
    }
    return {k: row for k, row in rows.items() if np.isfinite(row).all()}


def _columns(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the terms [steps, names] and the losses [steps]."""
    table = np.stack(rows)
    return table[:, :-1], table[:, -1]


def _weights(run: TappedRun, names: list[str]) -> np.ndarray | None:
    """Return the weights of the terms whose sum is the loss of each step, if there are such weights."""
    rows = list(_terms(run, names).values())
    if not 1 < len(names) <= MOST or len(rows) < len(names) + 2:
        return None
    terms, losses = _columns(rows)
    weights, _, rank, sizes = np.linalg.lstsq(terms, losses)
    fits = np.abs(terms @ weights - losses).max() <= FITS * np.abs(losses).max()
    return weights if fits and rank == len(names) and sizes[-1] > 1e-3 * sizes[0] else None
