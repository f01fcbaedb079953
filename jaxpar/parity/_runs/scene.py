"""Two runs and the step in which they part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .envelope import Walk
from .matching import Aligned, MatchedNames
from .run import TappedRun


@dataclass(frozen=True)
class Scene:
    """Two runs and the step in which they part."""

    a: TappedRun
    b: TappedRun
    names: MatchedNames
    walk: Walk
    step: int

    def aligned(self, part: str, step: int | None = None) -> Aligned:
        k = self.step if step is None else step
        return Aligned(part, self.a.steps[k], self.b.steps[k], self.names)

    def before(self) -> Aligned:
        """Return the parameters with which both runs begin the step."""
        return Aligned("parameters", self.a.before(self.step), self.b.before(self.step), self.names)

    def updating(self) -> list[int]:
        """Return the steps that change parameters of a run: of an accumulation only the last one does.

        All steps if a run did not tap its parameters.
        """
        steps = [k for k in self.walk.steps if any(map(self._changes, (self.a, self.b), (k, k)))]
        return steps or self.walk.steps

    def _changes(self, run: TappedRun, step: int) -> bool:
        before, after = (x.parts.get("parameters") for x in (run.before(step), run.steps[step]))
        if before is None or after is None or before.names != after.names:
            return True
        return not np.array_equal(before.values, after.values, equal_nan=True)
