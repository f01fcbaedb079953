"""The seconds of a clock as a table and as JSON."""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from dataclasses import asdict
from typing import Any

from .clock import COMPILE, LOWER, RANKS, READ, RUN, START, TRACE, Clock

PHASES = ("import", START, TRACE, LOWER, COMPILE, READ, RANKS, RUN)
LONGEST = 12
"""Rows of the table of functions, and packages that are imported."""


def as_dict(clock: Clock) -> dict[str, Any]:
    """Return all seconds and counts; `parts` add up to `seconds`, and `imports` to the phase `import`."""
    parts: dict[str, dict[str, float]] = {}
    imports: defaultdict[str, float] = defaultdict(float)
    for (part, phase), seconds in clock.seconds.items():
        if phase.startswith("import "):
            imports[phase.removeprefix("import ")] += seconds
            phase = "import"
        row = parts.setdefault(part, dict.fromkeys(PHASES, 0.0))
        row[phase] += seconds
    functions = [
        {"function": name, "line": _short(line), **asdict(counts)}
        for (name, line), counts in sorted(clock.functions.items(), key=lambda item: -item[1].seconds)
    ]
    return {
        "seconds": sum(clock.seconds.values()),
        "parts": parts,
        "imports": dict(sorted(imports.items(), key=lambda item: -item[1])),
        "functions": functions,
        "traced_more_than_once": [f"{f['function']} at {f['line']}" for f in functions if f["traced"] > 1],
    }


def text(clock: Clock, steps: int) -> str:
    """Return the tables of `as_dict` as text."""
    report = as_dict(clock)
    shown = [phase for phase in PHASES if any(row[phase] >= 0.0005 for row in report["parts"].values())]
    width = max(map(len, report["parts"]))
    end = f"to the end of step {steps}" if steps else "to its end; it called no step of jaxpar.train_step"
    lines = [f"{report['seconds']:.2f} s {end}", ""]
    lines.append(f"{'seconds':{width}}  {'sum':>7}" + "".join(f"  {phase:>{len(phase)}}" for phase in shown))
    for part, row in report["parts"].items():
        cells = "".join(f"  {row[phase]:>{max(len(phase), 6)}.3f}" for phase in shown)
        lines.append(f"{part:{width}}  {sum(row.values()):7.3f}{cells}")
    longest = list(report["imports"].items())[:LONGEST]
    others = sum(report["imports"].values()) - sum(seconds for _, seconds in longest)
    lines += ["", "import: " + ", ".join(f"{name} {s:.3f}" for name, s in [*longest, ("others", others)])]
    if sys.dont_write_bytecode:
        lines.append("Python compiles every module anew, because PYTHONDONTWRITEBYTECODE is set.")
    lines += ["", "traced  compiled  from cache  seconds  function"]
    for row in report["functions"][:LONGEST]:
        numbers = f"{row['traced']:>6}  {row['compiled']:>8}  {row['cached']:>10}  {row['seconds']:>7.3f}"
        lines.append(f"{numbers}  {row['function']} at {row['line']}")
    totals: Counter[str] = Counter()
    for row in report["functions"]:
        totals.update({key: row[key] for key in ("traced", "compiled", "cached")})
    lines.append(
        f"{totals['traced']:>6}  {totals['compiled']:>8}  {totals['cached']:>10}           "
        f"all {len(report['functions'])} functions"
    )
    if again := report["traced_more_than_once"]:
        lines += ["", "traced more than once:", *(f"  {name}" for name in again)]
    return "\n".join(lines)


def _short(line: str) -> str:
    """Return `file.py:12` relative to the working folder, where that is shorter."""
    file, colon, number = line.rpartition(":")
    return min(f"{os.path.relpath(file)}{colon}{number}", line, key=len) if file else line
