"""Comparison: the result as users see it, which shows and saves itself.

torch has no counterpart: `torch.testing.assert_close` raises or is silent.
"""

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
      notes: what else matters: kinks, why parameters are noise, determinism, overridden dtypes.
      seconds: how long it took.
      policy: the bounds.
      subject: what was compared, `torch class against Flax class`.
      constants: names of tensors that were rounded to float32 before the comparison, if both are the same
        but for that; the notes have the numbers.
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
        """Plain values for JSON, as docs/comparison.md describes them."""
        return document.document(self)

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        """The comparison that `save_json` wrote.

        Raises:
          ValueError: the text is not such a document; the message says where.
        """
        return document.loads(text, cls)

    def save_json(self, path: Path) -> None:
        """Writes strict JSON in UTF-8."""
        _write(path, document.dumps(self))

    def save_junit(self, path: Path) -> None:
        """Writes JUnit's XML: one test case for each kind of tensor at each path, and for each layer."""
        _write(path, junit.dumps(self))

    def save_html(self, path: Path) -> None:
        """Writes the report as one HTML file that needs nothing else, no network either.

        Raises:
          ImportError: jinja2 is not installed.
        """
        _write(path, html.dumps(self))


def require_same(comparison: Comparison) -> None:
    """Passes if both are the same.

    Raises:
      ParityError: they are not; the message is the table, the first divergent layer and the likely cause.
    """
    if not comparison.same:
        raise ParityError(f"{comparison}")


def _write(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
