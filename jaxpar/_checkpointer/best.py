"""Best steps by a metric, in a separate directory, because a run resumes from its newest step."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

from ..errors import CheckpointError
from .step import Damage, Metric, read_manifest
from .store import Store

BEST = "best"


class BestStore(Store):
    def __init__(self, directory: Path, keep: int):
        super().__init__(directory, keep)
        self._keep = keep

    def steps(self) -> list[int]:
        """Return the complete steps, best last, then unreadable ones that may have been better."""
        ranked = self._ranked()
        others = [step for step in super().steps() if step not in ranked]
        readable = [step for step in others if self._is_readable(step)]
        return readable + ranked + [step for step in others if step not in readable]

    def best(self) -> int | None:
        ranked = self._ranked()
        return ranked[-1] if ranked else None

    def accepts(self, metric: Metric | None) -> bool:
        """Return whether this metric is among the best; raise if the stored steps use the other mode."""
        assert metric is not None
        metrics = self._metrics()
        if any(other.mode != metric.mode for other in metrics.values()):
            raise CheckpointError(
                f"Checkpointer.save_best: the steps in {self.directory} are the best with another mode than "
                f"{metric.mode!r}. Use another directory for another metric."
            )
        # First, because a directory with room would accept NaN, which then compares with nothing.
        if math.isnan(metric.value):
            return False
        if len(metrics) < self._keep:
            return True
        return metric.badness < max(other.badness for other in metrics.values())

    def _ranked(self) -> list[int]:
        metrics = self._metrics()
        return sorted(metrics, key=lambda step: (-metrics[step].badness, -step))

    def _metrics(self) -> dict[int, Metric]:
        metrics = {}
        for step in super().steps():
            # A step without a readable metric, such as a different version's, is not ranked.
            with contextlib.suppress(Damage, CheckpointError, KeyError, TypeError):
                metrics[step] = Metric(*read_manifest(self.path(step))["metric"])
        return metrics
