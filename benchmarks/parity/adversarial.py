"""Does `parity.compare` say "the same" of what is not? Small edits of healthy pairs, drawn by a seed.

    python benchmarks/parity/adversarial.py [--seed 33] [--pairs 60] [--out docs/tables/adversarial.md]

The frame has every pair of `edited.PAIRS` with every edit of `edited.EDITS` at every line of either side
where it fits, and with two edits, one on each side. A comparison of an edited pair must be different, or list
the edit among what it did not reach: by the edited line, or by a sentence on it. A model that does not run is
refused.
"""

from __future__ import annotations

import argparse
import random
import re
import runpy
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.parity.edited import EDITS, PAIRS, Change, Edited, frame, written

OUTCOMES = ("different", "the same, and listed", "refused", "the same, and not listed")


def outcome(case: Edited, folder: Path) -> tuple[str, str]:
    """Compare an edited pair; return one of OUTCOMES, and the sentence that lists the edit."""
    from jaxpar import parity

    paths = {side: folder / f"{side}_side.py" for side in ("torch", "jax")}
    for side, path in paths.items():
        path.write_text(written(case, side))
    sides = {side: runpy.run_path(str(path)) for side, path in paths.items()}
    options = dict(PAIRS[case.pair].options)
    for name in ("loss", "optimizer"):
        if name in sides["torch"]:
            options[name] = sides["torch"][name], sides["jax"][name]
    model = sides["torch"]["model"]().train(options.pop("training", True))
    try:
        comparison = parity.compare(model, sides["jax"]["model"](), search=None, **options)
    except Exception as error:  # the edited model does not run, or is refused
        return "refused", f"{type(error).__name__}: {str(error)[:80]}".replace("\n", " ")
    if not comparison.same:
        return "different", ""
    sentences = [next((x for x in comparison.unreached if lists(x, change)), None) for change in case.changes]
    if None in sentences:
        return "the same, and not listed", " | ".join(comparison.unreached)
    return "the same, and listed", " | ".join(dict.fromkeys(map(str, sentences)))


def lists(sentence: str, change: Change) -> bool:
    """Whether a sentence is about a change: its line on its side, or what the edit says."""
    line = re.search(rf"{change.side}_side.py:{change.line}\b", sentence)
    return bool(line) or bool(change.text and re.search(change.text, sentence))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=33)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    cases = frame()
    drawn = random.Random(chosen.seed).sample(cases, min(chosen.pairs, len(cases)))
    rows = []
    for number, case in enumerate(drawn):
        with tempfile.TemporaryDirectory() as folder:
            answer, sentence = outcome(case, Path(folder))
        rows.append((case, answer, sentence))
        print(number, case.title, answer, sentence[:400], file=sys.stderr, flush=True)
    text = page(rows, chosen.seed, len(cases))
    chosen.out.write_text(text) if chosen.out else print(text)
    return int(any(answer == OUTCOMES[-1] for _, answer, _ in rows))


def page(rows: list[tuple[Edited, str, str]], seed: int, size: int) -> str:
    counts = Counter(answer for _, answer, _ in rows)
    lines = [
        "# Edited pairs",
        "",
        f"{len(rows)} of {size} edited pairs, drawn by seed {seed}: {len(PAIRS)} healthy pairs,",
        f"{len(EDITS)} edits at every line where they fit, on torch's side, JAX's, or both. Printed by",
        f"`python benchmarks/parity/adversarial.py --seed {seed} --pairs {len(rows)}`.",
        "",
        "| outcome | pairs |",
        "|---|---|",
        f"| asked | {len(rows)} |",
        *(f"| {name} | {counts[name]} |" for name in OUTCOMES),
        "",
        "| pair, edit, line | outcome | as listed |",
        "|---|---|---|",
    ]
    cells = ((case.title, answer, sentence.replace("|", "\\|")) for case, answer, sentence in rows)
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells)]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
