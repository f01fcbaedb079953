"""Render a comparison as JUnit XML for CI systems: a test case for each tensor, each layer and the curve."""

from __future__ import annotations

from xml.etree import ElementTree

from .._comparison_data import ComparisonData, LayerResult
from ..measuring import Judged, Outcome
from . import phrases
from .phrases import legal

STEPS = 10  # that a failure lists


def dumps(comparison: ComparisonData) -> str:
    """Return XML with a failure for each tensor that differs at any step; noise is a skipped test case."""
    suite = ElementTree.Element("testsuite", name=legal(comparison.subject or "parity"))
    properties = ElementTree.SubElement(suite, "properties")
    facts = {"level": comparison.level.value, "steps": comparison.steps, "replicas": comparison.replicas}
    for name, value in (facts | dict(comparison.environment)).items():
        ElementTree.SubElement(properties, "property", name=legal(str(name)), value=legal(str(value)))
    _add_rows(suite, comparison)
    for layer in comparison.divergence.layers if comparison.divergence else ():
        _add_case(suite, "layer", phrases.layer(layer.reference), _failure(layer, comparison))
    headline = phrases.headline(comparison)
    if comparison.curve is not None:
        _add_case(suite, "trajectory", "curve", headline if comparison.curve.failing else "")
    if not comparison.rows:
        _add_case(suite, "comparison", "rows", headline)
    counts = {"tests": "testcase", "failures": "testcase/failure", "skipped": "testcase/skipped"}
    numbers = {key: str(len(suite.findall(path))) for key, path in counts.items()}
    numbers |= {"errors": "0", "time": f"{comparison.seconds:.3f}"}
    suite.attrib.update(numbers)
    # Jenkins' schema has no `skipped` for all suites together.
    root = ElementTree.Element("testsuites", {k: v for k, v in numbers.items() if k != "skipped"})
    root.append(suite)
    ElementTree.indent(root)
    return f"<?xml version='1.0' encoding='UTF-8'?>\n{ElementTree.tostring(root, encoding='unicode')}\n"


def _add_rows(suite: ElementTree.Element, comparison: ComparisonData) -> None:
    steps: dict[tuple[str, str], list[Judged]] = {}
    for row in comparison.rows:
        steps.setdefault((row.difference.kind.value, phrases.name(row.difference)), []).append(row)
    # One case per tensor rather than per step: the name, by which CI systems follow a test over time, does
    # not depend on the number of steps.
    for (kind, name), rows in steps.items():
        wrong = [row for row in rows if row.outcome is Outcome.DIFFERENT]
        lines = [f"step {row.difference.step}: {row.reason}" for row in wrong]
        if len(lines) > STEPS:
            lines[STEPS:] = [f"and {len(lines) - STEPS:,} more steps"]
        # Noise at some steps only does not silence a tensor: its other steps have a verdict.
        silent = all(row.outcome is Outcome.NOISE for row in rows)
        _add_case(suite, kind, name, "\n".join(lines), rows[0].reason if silent else "")


def _failure(layer: LayerResult, comparison: ComparisonData) -> str:
    if layer.same:
        return ""
    lines = [f"{layer.kind}: relative {phrases.short(layer.relative)}", layer.note]
    if comparison.divergence is not None and comparison.divergence.reference == layer.reference:
        lines += phrases.divergence(comparison)
    return "\n".join(filter(None, lines))


def _add_case(suite: ElementTree.Element, kind: str, name: str, failure: str, skipped: str = "") -> None:
    classname = f"parity.{kind.replace(' ', '_')}"
    case = ElementTree.SubElement(suite, "testcase", classname=classname, name=legal(name), time="0")
    if failure:
        message = legal(failure.splitlines()[0])
        ElementTree.SubElement(case, "failure", type="ParityError", message=message).text = legal(failure)
    elif skipped:
        ElementTree.SubElement(case, "skipped", message=legal(skipped))
