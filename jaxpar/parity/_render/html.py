"""Render a comparison as one HTML file that needs no network, from the template `report.html.j2`."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from ... import _stamp
from .._comparison_data import ComparisonData
from ..measuring import Judged, Level
from . import pages, phrases, plots

ROWS = 1000  # in the table, those nearest to their limit; the others are counted


def dumps(comparison: ComparisonData) -> str:
    """Return the page. It is also valid XML, so that a test notices when a name becomes markup."""
    return rendered("report.html.j2", _view(comparison))


def rendered(template: str, view: Mapping[str, Any]) -> str:
    """Return the page that a template makes, with the style and script of all reports."""
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(
            "save_html: the report needs jinja2, which is not installed: pip install 'jaxpar[parity]'."
        ) from error
    # StrictUndefined: a misspelt name in the template raises instead of leaving an empty cell in a report.
    # The loader reads package resources, since the package may be imported from a zip file.
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: phrases.legal(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {f.__name__: f for f in (phrases.short, phrases.value, phrases.middle, path)}
    script = _file("sort.js")
    return environment.get_template(template).render(
        view,
        size=plots,
        style=_file("report.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _view(comparison: ComparisonData) -> dict[str, Any]:
    rows = phrases.worst_first(comparison.rows)
    curve = comparison.curve
    scatters = plots.scatters(comparison)
    return {
        "comparison": comparison,
        "headline": phrases.headline(comparison),
        "summary": phrases.summary(comparison),
        "circumstances": _circumstances(comparison),
        "pages": pages.of(comparison),
        "question": phrases.QUESTIONS[comparison.level],
        "divergence": phrases.divergence(comparison),
        "counts": phrases.counts(comparison.rows),
        "rows": [_cells(row) for row in rows[:ROWS]],
        # A long trajectory has too many rows for one page; save_json writes all of them.
        "hidden": phrases.counts(rows[ROWS:]),
        "ratios": comparison.level is not Level.SEMANTIC,
        "bars": plots.bars(comparison),
        "scatters": scatters,
        "marked": [outcome for outcome in phrases.ORDER if any(outcome in plot.marks for plot in scatters)],
        "trajectory": None if curve is None or not curve.steps else plots.trajectory(curve),
    }


def _circumstances(comparison: ComparisonData) -> list[str]:
    environment = comparison.environment
    versions = ", ".join(f"{name} {environment[name]}" for name in _stamp.SHOWN if name in environment)
    return [
        text
        for text in (environment.get("date") or _stamp.when(), versions, environment.get("command", ""))
        if text
    ]


def _cells(row: Judged) -> dict[str, Any]:
    d = row.difference
    texts = {"name": phrases.name(d), "shape": phrases.shape(row), "limit": phrases.limit(row)}
    return {"row": row, "d": d, **texts}


def path(points: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in points)


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
