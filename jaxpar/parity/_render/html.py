"""Render a comparison, or a bisection of two training runs, as one HTML file that needs no network.

The environment variable JAXPAR_DOCS may hold the address or folder of the guide; without it a report names a
page by its path in the repository, `docs/nn_norms.md`.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Protocol

from ... import _stamp
from .._comparison_data import ComparisonData, Curve, Divergence
from ..measuring import Judged, Level
from . import phrases, plots

# The first match counts: AdaptiveAvgPool2d must reach its own pattern before the optimizers' `Ada`.
BY_KIND = {
    r"\w*Norm([123]d)?": "nn_norms",
    r"\w*Conv\w*": "nn_conv",
    r"(RNN|LSTM|GRU)(Cell)?": "nn_recurrent",
    r"\w*Attention|Transformer\w*": "nn_attention",
    r"Embedding(Bag)?": "nn_embedding",
    r"\w*Pool\d?d?|\w*Unpool\d?d?": "nn_pooling",
    r"\w*Dropout\d?d?|\w*(LU6?|Sigmoid|Tanh|Softmax|Soft(plus|sign)|[sS]hrink|swish|Mish)": "nn_dropout",
    r"\w*Pad\d?d?|Upsample\w*|Pixel\w+|Fold|Unfold|ChannelShuffle": "nn_resize",
    r"loss|\w*Loss": "losses",
    r"optimizer|SGD|ASGD|\w*Ada\w*|\w+Adam\w*|RMSprop|Rprop|LBFGS|Muon": "optim",
}
CATALOGUE = "compare"  # the page of all other classes
# An address must not have other schemes, so that a report never links to executable code.
SCHEME = re.compile(r"(?!https?:)[\w+.-]+:|//", re.I)

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
        "pages": pages(comparison),
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


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of the guide; its address is None if JAXPAR_DOCS is not set."""

    name: str
    address: str | None


def pages(comparison: ComparisonData) -> list[Page]:
    """Return the pages on every divergence, without duplicates, and the catalogue of causes."""
    d = comparison.divergence
    if d is None:
        return []
    names = dict.fromkeys(name for divergence in (d, *d.others) if (name := _of_kind(divergence)))
    return [Page(f"docs/{name}.md", _address(name)) for name in (*names, CATALOGUE)]


def _of_kind(divergence: Divergence) -> str | None:
    return next((page for kind, page in BY_KIND.items() if re.fullmatch(kind, divergence.kind)), None)


def _address(name: str) -> str | None:
    base = os.environ.get("JAXPAR_DOCS", "").strip()
    return f"{base.rstrip('/')}/{name}.html" if base and not SCHEME.match(base) else None


class Distances(Protocol):
    steps: Sequence[int]
    distances: Sequence[float]
    allowed: Sequence[float]


def bisection_page(bisection: Any) -> str:
    """Return the page of a Bisection. It is also valid XML."""
    view = {"bisection": bisection, "headline": bisection.headline(), "curves": _curves(bisection.curves)}
    return rendered("bisection.html.j2", view)


def _curves(parts: Mapping[str, Distances]) -> list[tuple[str, Curve, plots.Trajectory]]:
    curves = []
    for part, distances in parts.items():
        # Rows are the same or not, without a distance.
        if part == "batch" or not any(x > 0 for x in distances.distances):
            continue
        steps, values, allowed = tuple(distances.steps), tuple(distances.distances), tuple(distances.allowed)
        outside = next((k for k, d, most in zip(steps, values, allowed, strict=True) if not d <= most), None)
        curve = Curve(steps, values, (0.0,) * len(steps), allowed, first_outside=outside)
        curves.append((part, curve, plots.trajectory(curve)))
    return curves
