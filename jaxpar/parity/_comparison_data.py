"""The data of a comparison; the public class `Comparison` adds the code that prints and saves it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ._reach import NOT_REACHED
from .measuring import Judged, Level, Outcome, Policy


@dataclasses.dataclass(frozen=True)
class Cause:
    """A change to the candidate's layer that makes it equal to the reference's.

    Attributes:
      text: the change as a user would write it: `epsilon=1e-05`, `approximate=False`.
      relative: max|c - r| / max|r| of the layer's output after the change.

    >>> from jaxpar.parity import Cause
    >>> print(Cause("epsilon=1e-05", relative=0.0))
    exactly equal if epsilon=1e-05
    """

    text: str
    relative: float

    def __str__(self) -> str:
        how = f"equal to {self.relative:.1g}" if self.relative else "exactly equal"
        return f"{how} if {self.text}"


@dataclasses.dataclass(frozen=True)
class LayerResult:
    """The result of replaying one layer on the reference's inputs.

    Attributes:
      reference: the torch module's path.
      candidate: the Flax module's path.
      kind: the torch module's class name.
      relative: max|c - r| / max|r| of the output; infinite if the outputs cannot be compared.
      same: whether `relative` is within the bound.
      note: a remark, or "".

    >>> from jaxpar.parity import LayerResult
    >>> LayerResult("fc", "fc", "Linear", relative=2e-16, same=True).same
    True
    """

    reference: str
    candidate: str
    kind: str
    relative: float
    same: bool
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Divergence:
    """A layer, or the code leading to a layer, that differs although it received the reference's inputs.

    Attributes:
      reference, candidate, kind: as in `LayerResult`.
      where: a sentence that locates the difference: the layer, the direction, the step.
      causes: changes that make both equal, the best first; empty if the catalogue has none.
      layers: all replayed layers, in the reference's order of execution.
      others: the other independent divergences, those that change the outputs first. Their `layers` and
        `others` are empty.

    >>> from jaxpar.parity import Cause, Divergence
    >>> divergence = Divergence("ln", "ln", "LayerNorm", "ln differs.", (Cause("epsilon=1e-05", 0.0),))
    >>> divergence.causes[0].text
    'epsilon=1e-05'
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
    """The candidate's error by training step, and the envelope of the reference's runs on nudged inputs.

    Attributes:
      steps: the step numbers, ascending.
      candidate: the candidate's error at each step.
      low, high: the smallest and largest error of the reference's runs at each step.
      first_outside: the first step at which the candidate exceeds the envelope and its tolerance.
      resync: whether every step started from the reference's state; otherwise both ran freely.

    >>> from jaxpar.parity import Curve
    >>> Curve(steps=(1, 2), candidate=(1e-7, 2e-7), low=(1e-7, 1e-7), high=(3e-7, 3e-7)).failing
    False
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
        """Whether the curve leaves its envelope in a way that counts as different.

        A free run counts for its first 20 steps, and after that while the envelope has stayed below 1e-4.
        """
        if self.first_outside is None:
            return False
        # Later in a free run, a single ReLU or max-pooling that flips moves either side by any amount.
        if self.resync or self.first_outside <= self.GATED_STEPS:
            return True
        before = [h for step, h in zip(self.steps, self.high, strict=True) if step <= self.first_outside]
        return all(h < self.GATED_ENVELOPE for h in before)


@dataclasses.dataclass(frozen=True, repr=False)
class ComparisonData:
    """The attributes and verdicts of a `Comparison`, which documents them."""

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
        """Whether at least one tensor was compared, no row differs, and no curve leaves its envelope."""
        # An empty comparison must not pass: a test would stay green while it compares nothing.
        return bool(self.rows) and not self.different and not (self.curve is not None and self.curve.failing)

    @property
    def different(self) -> tuple[Judged, ...]:
        """The rows that differ, in the order of computation: start with the first one."""
        return tuple(row for row in self.rows if row.outcome is Outcome.DIFFERENT)

    @property
    def unreached(self) -> tuple[str, ...]:
        """What the comparison did not exercise, and its verdict does not cover; from the notes."""
        return tuple(x.removeprefix(NOT_REACHED) for x in self.notes if x.startswith(NOT_REACHED))

    @property
    def largest(self) -> Judged | None:
        """The row with the largest severity, or None without rows. Noise comes last."""
        return max(self.rows, key=lambda row: row.severity, default=None)
