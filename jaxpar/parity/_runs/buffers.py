"""Name why BatchNorm's running statistics, or the optimizer's state, differ."""

from __future__ import annotations

import numpy as np

from .matching import Aligned
from .passes import Scene, cast_causes, mode_causes
from .updates import setting_causes

VARIANCES = ("var", "running_var")


def extra_causes(scene: Scene) -> list[str]:
    """Name how the updates of running statistics differ: the momentum, the variance's divisor, the mode."""
    if causes := [*mode_causes(scene), *cast_causes(scene, ("extra",))]:
        return causes
    after = scene.aligned("extra")
    before = Aligned("extra", scene.a.before(scene.step), scene.b.before(scene.step), scene.names)
    if not before or before.names != after.names:
        return []
    ratios: dict[str, float] = {}
    for i, name in enumerate(after.names):
        x, y = (t.samples[i] - u.samples[i] for t, u in ((after.a, before.a), (after.b, before.b)))
        square = float(np.vdot(x, x))
        ratio = float(np.vdot(x, y)) / square if square else np.nan
        if square and np.abs(y - ratio * x).max() <= 1e-4 * np.abs(y).max() and abs(ratio - 1) > 1e-6:
            ratios[name] = ratio
    means = [r for name, r in ratios.items() if name.split(".")[-1] not in VARIANCES]
    variances = [r for name, r in ratios.items() if name.split(".")[-1] in VARIANCES]
    if means and max(means) - min(means) <= 1e-3 * max(means):
        reversed_ = min(abs(means[0] - 9), 81 * abs(means[0] - 1 / 9)) < 0.1
        suffix = " (0.9 for 0.1: the two conventions)" if reversed_ else ""
        return [f"running statistics move {means[0]:.4g} times as far in run B: another momentum{suffix}"]
    if variances and not means:
        return ["the running variance alone differs: one run divides by n, the other by n - 1"]
    return []


def optimizer_causes(scene: Scene) -> list[str]:
    """Name why the optimizer's state differs: its type, or a setting without effect on the first update."""
    return list(cast_causes(scene, ("optimizer",))) or setting_causes(scene)
