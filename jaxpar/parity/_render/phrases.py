"""Sentences and short numbers that all forms of a report share."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Iterable
from functools import partial

from .._comparison_data import ComparisonData, Divergence
from ..measuring import Difference, Judged, Level, Number, Outcome

QUESTIONS = {
    Level.SEMANTIC: "both in float64, max|c - r| / max|r| against a bound far above rounding",
    Level.NUMERIC: "each one's error against a float64 oracle, the candidate's over the reference's own",
    Level.AS_IT_RUNS: "each one's error against a float64 oracle, both in their own types and precision",
    Level.TRAJECTORY: "each step's error against a float64 oracle, the candidate's over the reference's own",
}
ORDER = (Outcome.DIFFERENT, Outcome.CONSTANTS, Outcome.WORSE, Outcome.SAME, Outcome.NOISE)
PLACES = 5  # divergences described after the first; the others are listed
LISTED = 8  # names in a list; the others are counted
# Characters that are invalid in XML even when escaped, and should not be in HTML.
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def legal(text: str) -> str:
    return FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def worst_first(rows: tuple[Judged, ...]) -> list[Judged]:
    """Sort by outcome, then by severity; ties keep the order of computation."""
    return sorted(rows, key=lambda row: (ORDER.index(row.outcome), -row.severity))


def counts(rows: Iterable[Judged]) -> dict[Outcome, int]:
    counter = collections.Counter(row.outcome for row in rows)
    return {outcome: counter[outcome] for outcome in ORDER}


def headline(comparison: ComparisonData) -> str:
    by_outcome, total = counts(comparison.rows), len(comparison.rows)
    as_it_runs = comparison.level is Level.AS_IT_RUNS
    level = comparison.level.value if as_it_runs else f"at the {comparison.level.value} level"
    if not total:
        return f"Nothing was compared {level}"
    if by_outcome[Outcome.DIFFERENT]:
        return f"Different {level}: {by_outcome[Outcome.DIFFERENT]:,} of {_count(total, 'tensor')}"
    if not comparison.same and comparison.curve is not None:
        step = comparison.curve.first_outside
        return f"Different {level}: the trajectory leaves its envelope at step {step}"
    if comparison.constants:
        names = _listed(comparison.constants)
        return f"The same {level} up to float32 constants in {names}: all {_count(total, 'tensor')}"
    return f"The same {level}: all {_count(total, 'tensor')}"


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def summary(comparison: ComparisonData) -> str:
    """Return the subject, the number of steps and replicas, and the counts that the headline omits."""
    by_outcome = counts(comparison.rows)
    parts = [comparison.subject] if comparison.subject else []
    parts += [_count(comparison.steps, "step"), _count(comparison.replicas, "replica")]
    texts = {
        Outcome.CONSTANTS: "up to float32 constants",
        Outcome.WORSE: "within the bound but worse than the reference",
        Outcome.NOISE: "left out as noise",
    }
    parts += [f"{by_outcome[outcome]:,} {text}" for outcome, text in texts.items() if by_outcome[outcome]]
    if comparison.seconds:
        parts.append(f"{comparison.seconds:.1f} s")
    return ", ".join(parts)


def divergence(comparison: ComparisonData) -> list[str]:
    """Return lines on the independent divergences and their causes; [] without a divergence."""
    d = comparison.divergence
    if d is None:
        return []
    framework = comparison.subject.rpartition(" in ")[2]
    names = {"torch": ("the first model", "the second"), "Keras": ("torch", "Keras")}
    pair = partial(_pair, names.get(framework, ("torch", "Flax")))
    lines = [f"First divergence: {pair(d)} ({d.kind}).", d.where, *_causes(d)]
    named = {cause.text for cause in d.causes}
    # One wrong default, such as a norm's epsilon, usually affects every layer of a class: report it once.
    alike = [other for other in d.others if named & {cause.text for cause in other.causes}]
    if alike:
        lines.append(f"The same cause {_count(len(alike), 'more time')}: {_listed(map(pair, alike))}.")
    remaining = [other for other in d.others if other not in alike]
    for other in remaining[:PLACES]:
        lines += [f"Another divergence: {pair(other)} ({other.kind}).", other.where, *_causes(other)]
    if len(remaining) > PLACES:
        lines.append(
            f"Other divergences, {len(remaining) - PLACES} more: {_listed(map(pair, remaining[PLACES:]))}."
        )
    return lines


def _pair(models: tuple[str, str], d: Divergence) -> str:
    both = f"{layer(d.reference)} in {models[0]}, {layer(d.candidate)} in {models[1]}"
    return layer(d.reference) if d.reference == d.candidate else both


def _causes(d: Divergence) -> list[str]:
    unknown = "The catalogue of known causes has nothing that makes it equal."
    return [f"Likely cause: it is {cause}." for cause in d.causes] or [unknown]


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - LISTED} more" if len(every) > LISTED else ""
    return "; ".join(every[:LISTED]) + more


def layer(path: str) -> str:
    """Return a module's path, or a name for the model itself, whose path is empty."""
    return path or "the model itself"


def short(x: float | None) -> str:
    """Format a number with two digits if it is very small or large, else with three."""
    if x is None:
        return ""
    if x == 0 or not math.isfinite(x):
        return f"{x:g}"
    return f"{x:.3g}" if 0.01 <= abs(x) < 1000 else f"{x:.1e}"


def value(x: Number) -> str:
    """Format an element with enough digits to show a difference of 1e-10."""
    return "" if x is None else f"{x:.12g}" if isinstance(x, (float, complex)) else str(x)


def name(difference: Difference) -> str:
    """Return the tensor's path, or a name for a model's only output, whose path is empty."""
    return difference.name or f"the {difference.kind.value}"


def shape(row: Judged) -> str:
    return "\N{MULTIPLICATION SIGN}".join(map(str, row.difference.shape)) or "scalar"


def limit(row: Judged) -> str:
    return {0.0: "exact", math.inf: "none"}.get(row.limit) or short(row.limit)


def middle(text: str, length: int) -> str:
    """Shorten to at most `length` characters by cutting the middle, since a path's ends are most telling."""
    if len(text) <= length:
        return text
    end = (length - 1) // 2
    return f"{text[: length - 1 - end]}…{text[-end:]}"
