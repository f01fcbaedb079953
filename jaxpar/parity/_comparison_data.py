"""The values that a comparison consists of. They know nothing of how they are drawn or saved.

`Comparison`, which users see, is a ComparisonData that can show itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from .measuring import Judged, Level, Outcome, Policy


@dataclasses.dataclass(frozen=True)
class Cause:
    """A change of the candidate's layer that makes it equal to the reference's.

    Attributes:
      text: the change, as one would write it: `epsilon=1e-05`, `approximate=False`.
      relative: max|c - r| / max|r| of the layer's output after it.
    """

    text: str
    relative: float

    def __str__(self) -> str:
        how = f"equal to {self.relative:.1g}" if self.relative else "exactly equal"
        return f"{how} if {self.text}"


@dataclasses.dataclass(frozen=True)
class LayerResult:
    """One pair of layers, replayed from the reference's inputs.

    Attributes:
      reference: path of the torch module.
      candidate: path of the Flax module.
      kind: the torch module's class.
      relative: max|c - r| / max|r| of the output; infinite where it cannot be compared.
      same: whether that is within the bound.
      note: what else is to be said; may be empty.
    """

    reference: str
    candidate: str
    kind: str
    relative: float
    same: bool
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Divergence:
    """A place that differs though it is given the reference's inputs: a layer, or the code in front of it.

    Attributes:
      reference, candidate, kind: as in `LayerResult`.
      where: a sentence: which layer, in which direction, at which step.
      causes: what makes it equal, the best first; empty if the catalogue has nothing.
      layers: all layers replayed, in the order in which the reference runs them.
      others: every other place that differs by itself, those first that change the outputs. They have
        neither layers nor others.
    """

    reference: str
    candidate: str
    kind: str
    where: str
    causes: tuple[Cause, ...] = ()
    layers: tuple[LayerResult, ...] = ()
    others: tuple[Divergence, ...] = ()


@dataclasses.dataclass(frozen=True)
class Curve:
    """An error by training step, beside an envelope of runs of the reference on nudged inputs.

    Attributes:
      steps: their numbers, ascending.
      candidate: the candidate's error at each.
      low, high: the smallest and largest error of the reference's runs at each.
      first_outside: the first step at which the candidate is above the envelope and its tolerance.
      resync: whether the candidate was set back to the reference's state before every step; else both
        run freely.
    """

    steps: tuple[int, ...]
    candidate: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    first_outside: int | None = None
    resync: bool = True

    GATED_STEPS = 20
    GATED_ENVELOPE = 1e-4

    def __post_init__(self) -> None:
        lengths = {len(series) for series in (self.steps, self.candidate, self.low, self.high)}
        if len(lengths) != 1:
            raise ValueError(
                f"Curve: {len(self.steps)} steps, {len(self.candidate)} errors, {len(self.low)} and "
                f"{len(self.high)} values of the envelope."
            )

    @property
    def failing(self) -> bool:
        """Whether leaving the envelope counts.

        A free run counts in its first 20 steps, and as long as the envelope has stayed below 1e-4: later a
        single ReLU or max-pooling that falls to the other side moves either side by any amount.
        """
        if self.first_outside is None:
            return False
        if self.resync or self.first_outside <= self.GATED_STEPS:
            return True
        before = [h for step, h in zip(self.steps, self.high, strict=True) if step <= self.first_outside]
        return all(h < self.GATED_ENVELOPE for h in before)


@dataclasses.dataclass(frozen=True, repr=False)
class ComparisonData:
    """Every row with its verdict, the first divergence and the circumstances; see `Comparison`."""

    level: Level
    rows: tuple[Judged, ...]
    steps: int = 1
    replicas: int = 1
    divergence: Divergence | None = None
    curve: Curve | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    policy: Policy = dataclasses.field(default_factory=Policy)
    subject: str = ""
    constants: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether something was compared, no row is different, and no curve leaves its envelope."""
        return bool(self.rows) and not self.different and not (self.curve is not None and self.curve.failing)

    @property
    def different(self) -> tuple[Judged, ...]:
        """The rows that are different, in the order of computation: the first one is where to look."""
        return tuple(row for row in self.rows if row.outcome is Outcome.DIFFERENT)

    @property
    def largest(self) -> Judged | None:
        """The row nearest to its limit, or farthest above it; None without rows. Noise comes last."""
        return max(self.rows, key=lambda row: row.severity, default=None)
