"""The best steps by a metric, in a folder of their own.

In the run's own series they would be in the way: the newest step is what a run resumes from, and a best one
may hold less, be older, or have the number of one that is there. torch's imagenet example copies the file.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

from ..errors import CheckpointError
from .metric import Metric
from .step import Damage, read_manifest
from .store import Store

BEST = "best"


class BestStore(Store):
    """The best steps in a directory. They are in the order of their metric and not of their numbers."""

    def __init__(self, directory: Path, keep: int):
        super().__init__(directory, keep)
        self._keep = keep

    def steps(self) -> list[int]:
        """The steps that are complete, the best one last. After it what cannot be read, which may have been
        better: whoever restores the best one is told."""
        ranked = self._ranked()
        others = [step for step in super().steps() if step not in ranked]
        readable = [step for step in others if self._is_readable(step)]
        return readable + ranked + [step for step in others if step not in readable]

    def best(self) -> int | None:
        ranked = self._ranked()
        return ranked[-1] if ranked else None

    def accepts(self, metric: Metric | None) -> bool:
        """Whether a step with this metric is to be kept. Raises CheckpointError for the other mode."""
        assert metric is not None
        metrics = self._metrics()
        if any(other.mode != metric.mode for other in metrics.values()):
            raise CheckpointError(
                f"Checkpointer.save_best: the steps in {self.directory} are the best with another mode than "
                f"{metric.mode!r}. Use another directory for another metric."
            )
        if math.isnan(metric.value):
            return False
        if len(metrics) < self._keep:
            return True
        return metric.badness < max(other.badness for other in metrics.values())

    def _ranked(self) -> list[int]:
        """The worst first; of equal ones the later."""
        metrics = self._metrics()
        return sorted(metrics, key=lambda step: (-metrics[step].badness, -step))

    def _metrics(self) -> dict[int, Metric]:
        metrics = {}
        for step in super().steps():
            with contextlib.suppress(Damage, CheckpointError, KeyError, TypeError):
                metrics[step] = Metric(*read_manifest(self.path(step))["metric"])
        return metrics
