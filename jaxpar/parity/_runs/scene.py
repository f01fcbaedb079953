"""Two runs and the step in which they part."""

from __future__ import annotations

from dataclasses import dataclass

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
