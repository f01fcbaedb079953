"""Terms of the loss that are tapped as numbers of their own: which ones differ, and their weights."""

from __future__ import annotations

import numpy as np

from .run import MEAN, TappedRun
from .scene import Scene

FITS = 1e-5
"""The part of a loss that its weighted terms may leave unexplained."""
MOST = 4


def weights_cause(scene: Scene) -> str:
    """Return how each run weights the terms of its loss, if every loss is a sum of them, and they differ."""
    pairs = _scalars(scene)
    fitted = [_weights(run, [pair[i] for pair in pairs]) for i, run in enumerate((scene.a, scene.b))]
    weights = [x for x in fitted if x is not None]
    if len(weights) < 2 or np.allclose(weights[0], weights[1], 1e-3, 1e-6):
        return ""
    sums = [" + ".join(f"{x:.4g} * {pair[0]}" for x, pair in zip(row, pairs, strict=True)) for row in weights]
    return f"run A's loss is {sums[0]}, run B's is {sums[1]}"


def different_terms(scene: Scene) -> str:
    """Return which tapped numbers agree and which do not, as the end of a sentence about the loss."""
    after = scene.aligned("extra")
    names = {pair[0] for pair in _scalars(scene)}
    texts, agreeing = [], []
    for name, x, y in (
        zip(after.names, *(t.values[:, MEAN] for t in (after.a, after.b)), strict=True) if after else ()
    ):
        if name not in names or not np.isfinite((x, y)).all():
            continue
        if abs(x - y) <= scene.walk.tolerance("loss") * max(abs(x), abs(y)):
            agreeing.append(name)
        else:
            texts.append(
                f"{name} is {y / x:.6g} times as large in run B"
                if x
                else f"{name} is {y:.4g} in run B, not 0"
            )
    if not texts:
        return f"; {', '.join(agreeing[:MOST])} agree" if len(agreeing) > 1 else ""
    agree = f", and {', '.join(agreeing[:MOST])} the same" if agreeing else ""
    return f"; of the numbers beside it {', '.join(texts[:MOST])}{agree}"


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


def _weights(run: TappedRun, names: list[str]) -> np.ndarray | None:
    """Return the weights of the terms whose sum is the loss of each step, if there are such weights."""
    rows = [
        (step.parts["extra"].rows(names).values[:, MEAN], step.loss)
        for step in run.steps.values()
        if step.loss is not None and "extra" in step.parts and set(names) <= set(step.parts["extra"].names)
    ]
    if not 1 < len(names) <= MOST or len(rows) < len(names) + 2:
        return None
    terms, losses = np.stack([row for row, _ in rows]), np.array([loss for _, loss in rows])
    if not np.isfinite(terms).all() or not np.isfinite(losses).all():
        return None
    weights, _, rank, sizes = np.linalg.lstsq(terms, losses)
    fits = np.abs(terms @ weights - losses).max() <= FITS * np.abs(losses).max()
    return weights if fits and rank == len(names) and sizes[-1] > 1e-3 * sizes[0] else None
