"""Comparison: the public result of `compare`. No torch counterpart: `assert_close` only raises or passes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import ParityError
from ._comparison_data import ComparisonData
from ._render import document, html, junit, text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group

Path = str | os.PathLike[str]


class Comparison(ComparisonData):
    """The verdict on a Flax model and a torch model, and where they differ.

    A comparison has no truth value, because `if compare(...)` would be ambiguous; use `.same`.
    `print(comparison)` shows the table.

    Attributes:
      level: the level of the comparison.
      rows: every tensor at every step, with its verdict.
      steps: the number of training steps.
      replicas: the number of devices that had rows.
      divergence: the first divergent layer, if one was found.
      curve: errors by step, for a trajectory.
      environment: versions, flags, threads, seeds and precision settings.
      notes: remarks on kinks, noise, determinism and overridden dtypes.
      seconds: the duration.
      policy: the bounds.
      subject: the compared classes, `torch class against Flax class`.
      constants: names of tensors that were rounded to float32 before the comparison, if that is the only
        difference; the notes have the numbers.

    >>> from jaxpar.parity import Comparison, Level
    >>> Comparison(Level.SEMANTIC, rows=()).same
    False
    """

    def __bool__(self) -> bool:
        raise TypeError(
            "Comparison: the truth of a comparison is ambiguous; use .same for the verdict, .different for "
            "the rows that differ."
        )

    def __repr__(self) -> str:
        verdict = "same" if self.same else "different"
        return f"<Comparison: {self.level.value}, {verdict}, {len(self.rows)} tensors>"

    def __str__(self) -> str:
        return text.plain(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Group]:
        yield text.table(self, options.max_width)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, in the format of docs/comparison.md.

        >>> from jaxpar.parity import Comparison, Level
        >>> Comparison(Level.SEMANTIC, rows=()).as_dict()["level"]
        'semantic'
        """
        return document.document(self)

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        """Return the comparison that `save_json` wrote; a ValueError names the offending element."""
        return document.loads(text, cls)

    def save_json(self, path: Path) -> None:
        """Write strict JSON in UTF-8."""
        _write(path, document.dumps(self))

    def save_junit(self, path: Path) -> None:
        """Write JUnit XML: one test case for each kind of tensor at each path, and for each layer."""
        _write(path, junit.dumps(self))

    def save_html(self, path: Path) -> None:
        """Write the report as one HTML file, which needs no network; raises ImportError without jinja2."""
        _write(path, html.dumps(self))


def require_same(comparison: Comparison) -> None:
    """Raise unless both models are the same.

    Raises:
      ParityError: they differ. The message has the table, the first divergent layer and the likely cause.

    >>> from jaxpar import parity
    >>> parity.require_same(parity.Comparison(parity.Level.SEMANTIC, rows=()))
    Traceback (most recent call last):
    ...
    jaxpar.errors.ParityError: Nothing was compared at the semantic level...
    """
    if not comparison.same:
        raise ParityError(f"{comparison}")


def _write(path: Path, text: str) -> None:
    # The same bytes on every system, so that saved reports can be compared as files.
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
