"""Bugs drawn by a seed, mended by the loop of `mended`: the rules were not written in sight of them.

    python benchmarks/parity/mended_drawn.py [--seed 100] [--bugs 30] [--out docs/tables/mended.md]

The bugs are edits of `syntax_edits` in JAX's halves of `texts` and in the files of `ports`, which a
comparison calls different. Edits that do not run, and those called the same, are drawn again and counted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.parity import ports
from benchmarks.parity.edited import PAIRS, Change, source
from benchmarks.parity.mended import contract_of, mended
from benchmarks.parity.syntax_edits import draw_from

HEADING = "## Bugs drawn by a seed"
CASES = {"between": "relu6 by hand, relu"}  # whose right port the file is, where plants have several
FILES = {file: name for name, (file, _) in reversed(ports.PLANTS.items())} | CASES  # one bug's case by file


def texts() -> dict[str, str]:
    halves = {pair: source(pair, "jax") for pair in PAIRS}
    return halves | {file: ports.healthy(file) for file in FILES}


def contract_for(name: str, folder: Path) -> Path:
    """Write the contract of a pair or of a port's case; its port is still to be written."""
    if name in FILES:
        return contract_of(folder, FILES[name])
    import runpy

    import torch

    from jaxpar.parity import recorder
    from jaxpar.parity.contract.making import make

    side = folder / "torch_side.py"
    side.write_text(source(name, "torch"))
    defined = runpy.run_path(str(side))
    options = {k: x for k, x in PAIRS[name].options.items() if k != "layout"}
    torch.manual_seed(0)
    module = defined["model"]().train(options.pop("training", True))
    options |= {half: defined[half] for half in ("loss", "optimizer") if half in defined}
    recorder.load().record(folder / "trace", module, **options)
    return make(str(folder / "trace"), str(folder / "contract"), "")


def port_of(name: str, text: str) -> str:
    if name in FILES:
        return text
    layout = PAIRS[name].options.get("layout", "same")
    return f"{text}\n\nflax_module = model()\nlayout = {layout!r}\n"


def tried(contract: Path, port: str) -> tuple[str, str]:
    """Return `mended`, `not mended`, `the same` or `does not run`, and the causes."""
    from jaxpar.parity.contract.live import judged

    path = contract / "port.py"
    path.write_text(port)
    try:
        if judged(contract, path).same:
            return "the same", ""
    except Exception as error:
        return "does not run", f"{type(error).__name__}: {error}"[:100].replace("\n", " ")
    is_met, causes = mended(contract)
    return ("mended" if is_met else "not mended"), "; ".join(causes)


def rows_of(seed: int, bugs: int) -> list[tuple[str, Change, str, str]]:
    import jax

    rows, all_texts = [], texts()
    with tempfile.TemporaryDirectory() as folder:
        contracts: dict[str, Path] = {}
        for name, change in draw_from(all_texts, seed):
            if name not in contracts:
                (path := Path(folder) / name).mkdir()
                contracts[name] = contract_for(name, path)
            started = time.perf_counter()
            rows.append((name, change, *tried(contracts[name], port_of(name, change.source))))
            asked = sum("mended" in row[2] for row in rows)
            seconds = f"{time.perf_counter() - started:.0f} s"
            print(
                asked,
                name,
                change.name,
                change.line,
                *rows[-1][2:],
                seconds,
                sep=" | ",
                file=sys.stderr,
                flush=True,
            )
            jax.clear_caches()
            if asked >= bugs:
                break
    return rows


def section(rows: list[tuple[str, Change, str, str]], seed: int) -> str:
    counts = Counter(row[2] for row in rows)
    asked = [row for row in rows if "mended" in row[2]]
    lines = [
        HEADING,
        "",
        f"Edits of the syntax in {len(texts())} files, drawn by seed {seed}: the rules were written",
        f"without them. {counts['does not run']} more do not run and {counts['the same']} more are the same.",
        f"Printed by `python benchmarks/parity/mended_drawn.py --seed {seed} --bugs {len(asked)}`.",
        "",
        "| frame | asked | met after the edits |",
        "|---|---|---|",
        f"| bugs drawn by seed {seed} | {len(asked)} | {counts['mended']} |",
        "",
        "| file | edit, line | met | mended |",
        "|---|---|---|---|",
    ]
    for name, change, outcome, causes in asked:
        edit = f"{change.name.removesuffix(', jax')}, line {change.line}"
        cells = (name, edit, "yes" if outcome == "mended" else "no", causes)
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--bugs", type=int, default=30)
    parser.add_argument(
        "--out", type=Path, help="the page whose last section this is; otherwise it is printed"
    )
    chosen = parser.parse_args()
    text = section(rows_of(chosen.seed, chosen.bugs), chosen.seed)
    if chosen.out:
        before = chosen.out.read_text().partition(HEADING)[0].rstrip("\n")
        text = f"{before}\n\n{text}"
        chosen.out.write_text(text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
