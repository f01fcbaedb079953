"""What `parity.compare` answers on mechanical edits of healthy pairs, drawn by a seed.

    python benchmarks/parity/drawn.py [--seed 100] [--pairs 60] [--out docs/tables/drawn.md]

The edits are those of `syntax_edits`, made from the syntax alone. A pair that does not run is drawn again.
A comparison of another is different, at the right place or not; or it is the same, and the edit is listed
among what was not reached, by its line or by the layer that it makes; or `equivalence` sees no difference
on more inputs. The rest is wrong.
"""

from __future__ import annotations

import argparse
import ast
import re
import runpy
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.parity.edited import PAIRS, Change, Edited, source, written
from benchmarks.parity.syntax_edits import draw

DIFFERENT, ELSEWHERE = "different, at the edit's place", "different, at another place"
NOWHERE = "different, without a place"
LISTED, EQUIVALENT = "the same, and listed", "the same, and equivalent"
ALIKE = "the same, edited alike on both sides"
WRONG, UNRUN = "the same, and wrong", "the edited pair does not run"
OUTCOMES = DIFFERENT, ELSEWHERE, NOWHERE, LISTED, EQUIVALENT, ALIKE, WRONG


class Answer(NamedTuple):
    """One of OUTCOMES, and a sentence."""

    outcome: str
    sentence: str = ""


def answer(case: Edited, folder: Path) -> Answer:
    """Compare an edited pair."""
    import torch

    from jaxpar import parity

    paths = {side: folder / f"{side}_side.py" for side in ("torch", "jax")}
    for side, path in paths.items():
        path.write_text(written(case, side))
    options = dict(PAIRS[case.pair].options)
    torch.manual_seed(0)
    try:
        sides = {side: runpy.run_path(str(path)) for side, path in paths.items()}
        for name in ("loss", "optimizer"):
            if name in sides["torch"] or name in sides["jax"]:
                options[name] = sides["torch"][name], sides["jax"][name]
        model = sides["torch"]["model"]().train(options.pop("training", True))
        comparison = parity.compare(model, sides["jax"]["model"](), search="quick", **options)
    except Exception as error:
        return Answer(UNRUN, f"{type(error).__name__}: {error}"[:200].replace("\n", " "))
    if not comparison.same:
        return Answer(*placed(case, comparison.divergence))
    return of_same(case, comparison)


def of_same(case: Edited, comparison: Any) -> Answer:
    """Return why an edited pair may be called the same, or that it may not."""
    from benchmarks.parity.equivalence import are_alike, are_equivalent

    texts = {change: (source(case.pair, change.side), change.source) for change in case.changes}
    left = [c for c in case.changes if not are_equivalent(*texts[c], c.side, case.pair)]
    if not left:
        return Answer(EQUIVALENT)
    if len(left) == 2 and are_alike({c.side: c.source for c in left}, case.pair):
        return Answer(ALIKE)
    sentences = [next((x for x in comparison.unreached if lists(x, change)), None) for change in left]
    if None in sentences:
        return Answer(WRONG, " | ".join(comparison.unreached))
    return Answer(LISTED, " | ".join(map(str, sentences)))


def lists(sentence: str, change: Change) -> bool:
    """Whether a sentence names the edited line of its side, or the layer that the line makes."""
    if re.search(rf"{change.side}_side.py:{change.line}\b", sentence):
        return True
    return any(re.search(rf"\b{name}\b", sentence) for name in made_at(change))


def made_at(change: Change) -> list[str]:
    """Return the attributes of self that the edited statement assigns."""
    return [
        x.attr
        for x in ast.walk(ast.parse(change.source))
        if isinstance(x, ast.Attribute) and isinstance(x.ctx, ast.Store) and x.lineno == change.line
    ]


# ------------------------------------------------------------------------------------------------ the place


def placed(case: Edited, divergence: Any) -> tuple[str, str]:
    """Return whether the first place is one of the edits', and the place."""
    if divergence is None:
        return NOWHERE, ""
    path = f"{divergence.kind or 'layer'} | {divergence.candidate}"
    is_right = any(is_at(source(case.pair, change.side), change, divergence) for change in case.changes)
    return (DIFFERENT if is_right else ELSEWHERE), path


def is_at(text: str, change: Change, divergence: Any) -> bool:
    """Whether a divergence is at an edited line: its layers, or the code up to a layer."""
    tree = ast.parse(text)
    function = next(
        (
            f
            for f in ast.walk(tree)
            if isinstance(f, ast.FunctionDef) and f.lineno <= change.line <= f.end_lineno
        ),
        None,
    )
    name = divergence.candidate
    if function is None or function.name in ("loss", "optimizer"):
        return name == (function.name if function else "optimizer")
    reads = [x for x in ast.walk(tree) if isinstance(x, ast.Attribute) and ast.unparse(x.value) == "self"]
    lines: dict[str, list[int]] = {}
    for x in reads:
        if isinstance(x.ctx, ast.Load):
            lines.setdefault(x.attr, []).append(x.lineno)
    here = {x.attr for x in reads if x.lineno == change.line}
    if name.partition(".")[0] in here:
        return True
    between = re.match(r"between (.+) and (.+)", divergence.kind)
    if function.name == "__init__":
        return bool(between) and bool({*between.groups()} & here)
    first, last = 0, 10**9
    if between:
        first = min(lines.get(between[1].partition(".")[0], [0]))
        last = max(lines.get(between[2].partition(".")[0], [last]))
    elif divergence.kind == "after the last layer":
        first = min(lines.get(divergence.reference.partition(".")[0], [0]))
    else:
        return False
    return any(first <= line <= last for line in [change.line, *lines_that_read(function, change.line)])


def lines_that_read(function: ast.FunctionDef, line: int) -> list[int]:
    """Return the lines that read a variable which the function assigns at this line only."""
    names = [x for x in ast.walk(function) if isinstance(x, ast.Name)]
    stored = [(x.id, x.lineno) for x in names if isinstance(x.ctx, ast.Store)]
    once = {name for name, at in stored if at == line and [n for n, _ in stored].count(name) == 1}
    return [x.lineno for x in names if isinstance(x.ctx, ast.Load) and x.id in once]


def rows_of(seed: int, pairs: int) -> list[tuple[Edited, Answer]]:
    """Draw pairs until so many have run."""
    rows: list[tuple[Edited, Answer]] = []
    for case in draw(seed):
        with tempfile.TemporaryDirectory() as folder:
            rows.append((case, answer(case, Path(folder))))
        ran = sum(a.outcome != UNRUN for _, a in rows)
        print(ran, case.title, *rows[-1][1], file=sys.stderr, flush=True, sep=" | ")
        if ran >= pairs:
            return rows
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    rows = rows_of(chosen.seed, chosen.pairs)
    text = page(rows, chosen.seed)
    chosen.out.write_text(text) if chosen.out else print(text)
    return int(any(a.outcome == WRONG for _, a in rows))


def page(rows: list[tuple[Edited, Answer]], seed: int) -> str:
    counts = Counter(a.outcome for _, a in rows)
    ran = [row for row in rows if row[1].outcome != UNRUN]
    lines = [
        "# Mechanical edits",
        "",
        f"{len(ran)} edited pairs, drawn by seed {seed}: every operator, number, name, argument, call and",
        f"statement of {len(PAIRS)} healthy pairs may change, on either side or on both.",
        f"{counts[UNRUN]} more do not run. *Equivalent*: equal to 1e-12 in one framework, on 20 further",
        "inputs with zeros, ties, large and tiny numbers and other shapes, in both modes. Printed by",
        f"`python benchmarks/parity/drawn.py --seed {seed} --pairs {len(ran)}`.",
        "",
        "| outcome | pairs |",
        "|---|---|",
        f"| asked | {len(ran)} |",
        *(f"| {name} | {counts[name]} |" for name in OUTCOMES),
        "",
        "| pair, edit, line | outcome | place, or as listed |",
        "|---|---|---|",
    ]
    for case, (outcome, sentence) in ran:
        cells = case.title, outcome, sentence
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
