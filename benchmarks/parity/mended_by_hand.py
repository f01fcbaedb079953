"""Bugs made by hand, mended by the loop of `mended`, and then judged on other inputs and weights.

    python benchmarks/parity/mended_by_hand.py [--only TEXT] [--out docs/tables/mended.md]

The contract is made of torch's file, as a user makes it. The models and bugs are those of `by_hand`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.parity import by_hand
from benchmarks.parity.mended import mended

HEADING = "## Bugs made by hand"
Row = tuple[str, bool, bool, str]  # the bug, whether it is mended, also on other inputs, and the causes


def contract_of(name: str, folder: Path, seed: int) -> Path:
    from jaxpar.parity.contract.making import make

    folder.mkdir(parents=True)
    side = folder / "torch_side.py"
    side.write_text(by_hand.text(name, "torch", seed))
    return make(str(side), str(folder / "contract"), "")


def row_of(bug: str, folder: Path) -> Row:
    from jaxpar.parity.contract.live import judged

    name = by_hand.BUGS[bug][0]
    contract, other = (contract_of(name, folder / str(seed), seed) for seed in (0, 1))
    (contract / "port.py").write_text(by_hand.text(name, "jax"))
    assert judged(contract, contract / "port.py", search=False).same, f"{name}: the right port differs"
    (contract / "port.py").write_text(by_hand.planted(bug))
    assert not judged(contract, contract / "port.py", search=False).same, f"{bug}: it makes no difference"
    is_met, causes = mended(contract)
    elsewhere = is_met and judged(other, contract / "port.py", search=False).same
    before, after = by_hand.planted(bug).splitlines(), (contract / "port.py").read_text().splitlines()
    new = [line.strip() for line in after if line not in before]
    return bug, is_met, elsewhere, " // ".join(new) if is_met else "; ".join(causes)


def section(rows: list[Row]) -> str:
    met, elsewhere = (sum(row[i] for row in rows) for i in (1, 2))
    lines = [
        HEADING,
        "",
        "Bugs as people make them in ports, in three models that the rules were not written for. The",
        "contract has torch's file. A second contract has other weights and inputs.",
        "Printed by `python benchmarks/parity/mended_by_hand.py`.",
        "",
        "| frame | asked | met after the edits | met on other inputs, too |",
        "|---|---|---|---|",
        f"| bugs made by hand | {len(rows)} | {met} | {elsewhere} |",
        "",
        "| bug | met | on other inputs | lines after the edit, or the cause without one |",
        "|---|---|---|---|",
    ]
    for bug, *flags, text in rows:
        cells = (bug, *("yes" if flag else "no" for flag in flags), f"`{text}`" if flags[0] else text)
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="the bugs whose name has this text")
    parser.add_argument("--out", type=Path, help="the page whose section this is; otherwise it is printed")
    chosen = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for i, bug in enumerate(bug for bug in by_hand.BUGS if chosen.only in bug):
            started = time.perf_counter()
            rows.append(row_of(bug, Path(folder) / str(i)))
            print(*rows[-1], f"{time.perf_counter() - started:.0f} s", sep=" | ", file=sys.stderr, flush=True)
    text = section(rows)
    if chosen.out:
        page = chosen.out.read_text().partition(f"\n{HEADING}")[0].rstrip("\n")
        chosen.out.write_text(f"{page}\n\n{text}")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
