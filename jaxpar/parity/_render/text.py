"""Render a comparison as a table for a terminal or a log: the worst rows first, the others counted."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from .._comparison_data import ComparisonData
from ..measuring import Judged, Level, Outcome
from . import phrases

WIDTH = 120  # of the text that `str` returns; a terminal has its own width
SHOWN = {
    Outcome.DIFFERENT: 20,
    Outcome.CONSTANTS: 10,
    Outcome.WORSE: 10,
    Outcome.SAME: 3,
    Outcome.NOISE: 5,
}  # rows, the worst first; the others are counted
STYLES = {
    Outcome.DIFFERENT: "bold red",
    Outcome.CONSTANTS: "yellow",
    Outcome.WORSE: "yellow",
    Outcome.SAME: "green",
    Outcome.NOISE: "dim",
}


def plain(comparison: ComparisonData) -> str:
    file = io.StringIO()
    # Explicitly without colours: rich would obey FORCE_COLOR and put escape codes into `str(comparison)`.
    console = Console(file=file, width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(table(comparison, WIDTH))
    # rich pads lines to the full width, which a log or a quoted table should not contain.
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def table(comparison: ComparisonData, width: int) -> Group:
    """Return a rich renderable of the given width, coloured if the terminal is and NO_COLOR is not set."""
    verdict = Outcome.SAME if comparison.same else Outcome.DIFFERENT
    parts: list[RenderableType] = [
        Text(phrases.headline(comparison) + ".", STYLES[verdict]),
        Text(phrases.summary(comparison)),
    ]
    if lines := phrases.divergence(comparison):
        parts += [Text(), Text(lines[0], "bold"), *(Text(line) for line in lines[1:])]
    if comparison.rows:
        parts += [Text(), _rows(comparison, width), *(Text(line) for line in _collapsed(comparison))]
    if lines := _reasons(comparison):
        parts += [Text(), *(Text(line) for line in lines)]
    parts += [Text(line) for line in _curve(comparison)]
    if comparison.notes:
        parts += [Text(), *(Text(f"Note: {note}") for note in comparison.notes)]
    return Group(*parts)


def _shown(comparison: ComparisonData) -> list[Judged]:
    rows = phrases.worst_first(comparison.rows)
    return [
        row for outcome, most in SHOWN.items() for row in [r for r in rows if r.outcome is outcome][:most]
    ]


def _rows(comparison: ComparisonData, width: int) -> Table:
    """Return a table with as many columns as fit. Numbers are never cut; a path is folded or shortened."""
    numeric, steps, wide = comparison.level is not Level.SEMANTIC, comparison.steps > 1, width >= 100
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    grid.add_column("verdict", no_wrap=True)
    grid.add_column("kind")
    grid.add_column("tensor", overflow="fold", min_width=12)
    numbers = [
        *["step"] * steps,
        *["shape"] * wide,
        *["relative"] * (wide or not numeric),
        *["ratio RMS", "ratio max"] * numeric,
        "limit",
        *["max abs", "ULP", "worst at"] * wide,
    ]
    for name in numbers:
        grid.add_column(name, justify="right", no_wrap=True)
    for row in _shown(comparison):
        cells = _cells(row)
        path = Text(phrases.middle(phrases.name(row.difference), 120 if wide else 50))
        grid.add_row(
            cells["verdict"], row.difference.kind.value, path, *(cells[column] for column in numbers)
        )
    return grid


def _cells(row: Judged) -> dict[str, Text]:
    d = row.difference
    cells = {
        "step": str(d.step),
        "shape": phrases.middle(phrases.shape(row), 16),
        "relative": phrases.short(d.relative),
        "ratio RMS": phrases.short(d.ratio_rms),
        "ratio max": phrases.short(d.ratio_max),
        "limit": phrases.limit(row),
        "max abs": phrases.short(d.max_abs),
        "ULP": phrases.short(d.ulp),
        "worst at": phrases.middle(str(list(d.index)), 16),
    }
    verdict = Text(row.outcome.value, STYLES[row.outcome])
    return {"verdict": verdict} | {name: Text(cell) for name, cell in cells.items()}


def _collapsed(comparison: ComparisonData) -> list[str]:
    shown, total = (phrases.counts(rows) for rows in (_shown(comparison), comparison.rows))
    more = {outcome: total[outcome] - shown[outcome] for outcome in total}
    return [f"and {count:,} more {outcome.value}" for outcome, count in more.items() if count]


def _reasons(comparison: ComparisonData) -> list[str]:
    """Return the reasons of rows with faults or noise, whose numbers do not explain the verdict."""
    reasons = (
        f"{row.difference.kind.value} {phrases.name(row.difference)}: {row.reason}"
        for row in _shown(comparison)
        if row.reason and (row.difference.fault is not None or row.outcome is Outcome.NOISE)
    )
    return list(dict.fromkeys(reasons))


def _curve(comparison: ComparisonData) -> list[str]:
    curve = comparison.curve
    if curve is None or not curve.steps:
        return []
    mode = "set back to the reference before every step" if curve.resync else "running freely"
    ends = (f"{phrases.short(curve.candidate[i])} at step {curve.steps[i]}" for i in (0, -1))
    outside = "never outside the envelope"
    if curve.first_outside is not None:
        outside = f"outside the envelope from step {curve.first_outside} on"
    return ["", f"Trajectory, {mode}: error {', '.join(ends)}, {outside}."]
