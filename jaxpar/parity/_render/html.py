"""A comparison as one HTML file that needs no network: the page is `report.html.j2`."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import Any

from .._comparison import Comparison
from .._judge import Judged, Level
from . import plots, words

ROWS = 1000
"""In the table; the ones nearest to their limit. The others are counted."""


def dumps(comparison: Comparison) -> str:
    """The page. It is XML as well, so that whatever a name contains cannot become markup unnoticed.

    Raises:
      ImportError: jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(
            "save_html: the report needs jinja2, which is not installed: pip install 'jaxpar[parity]'."
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: words.legal(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"short": words.short, "value": words.value, "middle": words.middle, "path": _path}
    script = _file("sort.js")
    return environment.get_template("report.html.j2").render(
        _view(comparison),
        style=_file("report.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _view(comparison: Comparison) -> dict[str, Any]:
    """What the template names."""
    rows = words.worst_first(comparison.rows)
    curve = comparison.curve
    scatters = plots.scatters(comparison)
    return {
        "comparison": comparison,
        "headline": words.headline(comparison),
        "summary": words.summary(comparison),
        "question": words.QUESTIONS[comparison.level],
        "divergence": words.divergence(comparison),
        "counts": words.counts(comparison.rows),
        "rows": [_cells(row) for row in rows[:ROWS]],
        "hidden": words.counts(rows[ROWS:]),
        "ratios": comparison.level is not Level.SEMANTIC,
        "bars": plots.bars(comparison),
        "scatters": scatters,
        "marked": [each for each in words.ORDER if any(each in plot.marks for plot in scatters)],
        "trajectory": None if curve is None or not curve.steps else plots.trajectory(curve),
        "size": plots,
    }


def _cells(row: Judged) -> dict[str, Any]:
    d = row.difference
    return {"row": row, "d": d, "name": words.name(d), "shape": words.shape(row), "limit": words.limit(row)}


def _path(points: list[tuple[float, float]]) -> str:
    """The points joined, as SVG writes it."""
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in points)


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
