"""The result of a comparison, as a value: rows with a verdict each, the first divergence, the circumstances.

torch has no counterpart: `torch.testing.assert_close` raises or is silent.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ParityError
from ._judge import Judged, Level, Outcome, Policy

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group


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
    """The first layer that differs though it is given the reference's inputs.

    Attributes:
      reference: path of the torch module.
      candidate: path of the Flax module.
      kind: the torch module's class.
      where: a sentence: which layer, in which direction, at which step.
      causes: what makes it equal, the best first; empty if the catalogue has nothing.
      layers: all layers replayed, in the order in which the reference runs them.
    """

    reference: str
    candidate: str
    kind: str
    where: str
    causes: tuple[Cause, ...] = ()
    layers: tuple[LayerResult, ...] = ()


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
        lengths = {len(each) for each in (self.steps, self.candidate, self.low, self.high)}
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
class Comparison:
    """Whether a Flax model is the same as a torch model, and where it is not.

    It has no truth value: `if compare(...)` would read as "if they are the same" and as "if there is a
    result". Ask for `.same`. `print(comparison)` shows the table.

    Attributes:
      level: the question that was asked.
      rows: every tensor of every step, with its verdict.
      steps: of training.
      replicas: devices that had rows.
      divergence: the first layer that differs, if one was looked for and found.
      curve: errors by step, if there was a trajectory.
      environment: versions, flags, threads, seeds, settings of precision: names and values.
      notes: what else has to be said: kinks, why parameters are noise, determinism, overridden dtypes.
      seconds: how long it took.
      policy: the bounds.
      subject: what was compared, `torch class against Flax class`.
    """

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

    def __bool__(self) -> bool:
        raise TypeError(
            "Comparison: the truth of a comparison is ambiguous; use .same for the verdict, .different for "
            "the rows that differ."
        )

    def __repr__(self) -> str:
        verdict = "same" if self.same else "different"
        return f"<Comparison: {self.level.value}, {verdict}, {len(self.rows)} tensors>"

    def __str__(self) -> str:
        from ._render import text

        return text.plain(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Group]:
        from ._render import text

        yield text.table(self, options.max_width)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, as docs/comparison.md describes them."""
        from ._render import document

        return document.document(self)

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        """The comparison that `save_json` wrote.

        Raises:
          ValueError: the text is not such a document; the message says where.
        """
        from ._render import document

        return document.comparison(text)

    def save_json(self, path: str | os.PathLike[str]) -> None:
        """Writes strict JSON in UTF-8."""
        from ._render import document

        _write(path, document.dumps(self))

    def save_junit(self, path: str | os.PathLike[str]) -> None:
        """Writes JUnit's XML: one test case for each kind of tensor at each path, and for each layer."""
        from ._render import junit

        _write(path, junit.dumps(self))

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Writes the report as one HTML file that needs nothing else, no network either.

        Raises:
          ImportError: jinja2 is not installed.
        """
        from ._render import html

        _write(path, html.dumps(self))


def require_same(comparison: Comparison) -> None:
    """Passes if both are the same.

    Raises:
      ParityError: they are not; the message is the table, the first divergent layer and the likely cause.
    """
    if not comparison.same:
        raise ParityError(f"{comparison}")


def _write(path: str | os.PathLike[str], text: str) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
