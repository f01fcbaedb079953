"""docs/tables/mutants.md: which planted bugs the tests have seen."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from .plant import Plant
from .tree import Result

HEAD = """\
# Mutation tests: planted bugs

Do the tests see a small mistake? Each row is one, put into a copy of the tree and run against the tests that
must see it. `make mutants` runs them all and prints this page; they are in `benchmarks/mutants/plants/`.
"""
LONGEST = 110


def write(plants: Sequence[Plant], results: Mapping[Plant, Result]) -> str:
    lines = [HEAD, count(plants, results) + ".", ""]
    for room in dict.fromkeys(map(_room, plants)):
        here = [p for p in plants if _room(p) == room and not p.equivalent]
        if here:
            lines += [f"## {room}", "", "| file | planted | result | by |", "|---|---|---|---|"]
            lines += [_row(p, results.get(p, Result("not run"))) for p in here]
            lines.append("")
    equal = [p for p in plants if p.equivalent]
    if equal:
        lines += ["## Equivalents", "", "No test can see these, and they are not run.", ""]
        lines += ["| file | planted | why it is the same |", "|---|---|---|"]
        lines += [f"| `{p.file}` | {_cell(change(p))} | {p.equivalent} |" for p in equal]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


DRAWN = "## Drawn by a seed\n"


def drawn(
    plants: Sequence[Plant], results: Mapping[Plant, Result], possible: int, asked: int, seed: int
) -> str:
    """The section on mutants of drawn.py: how many there were to draw from, and each one's result."""
    lines = [
        DRAWN,
        f"`python -m benchmarks.mutants.run --drawn {asked} --seed {seed}` draws {asked} of the {possible:,}",
        "mutants of a mechanical list, `benchmarks/mutants/drawn.py`, and runs each against tests that run",
        "its statement, and then against whole files of such tests.",
        f"Of the first {len(plants)}: {count(plants, results)}.",
        "",
        "| file | drawn | result | by |",
        "|---|---|---|---|",
    ]
    for plant in plants:
        result = results.get(plant, Result("survived" if plant.equivalent else "not run", plant.equivalent))
        by = plant.equivalent or result.by or f"{plant.tests.count('::')} tests"
        lines.append(_row(plant, dataclasses.replace(result, by=by)))
    return "\n".join(lines) + "\n"


def count(plants: Sequence[Plant], results: Mapping[Plant, Result]) -> str:
    """`152 planted: 150 killed, 2 survived; 3 equivalent`"""
    planted = [p for p in plants if not p.equivalent]
    kinds = Counter(results[p].kind if p in results else "not run" for p in planted)
    said = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    return f"{len(planted)} planted: {said or 'none run'}; {len(plants) - len(planted)} equivalent"


def change(plant: Plant) -> str:
    old, new = _line(plant.text), _line(plant.replacement)
    return f"`{old}` becomes `{new}`" if new else f"`{old}` is left out"


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def _row(plant: Plant, result: Result) -> str:
    name = plant.file.partition("/")[2] if plant.file.startswith("jaxpar/") else plant.file
    by = result.by or plant.tests
    return f"| `{name}` | {_cell(change(plant))} | {result.kind} | `{_cell(by.removeprefix('tests/'))}` |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _room(plant: Plant) -> str:
    parts = plant.file.split("/")
    return parts[1].removesuffix(".py") if parts[0] == "jaxpar" else parts[0]
