"""Planted bugs, mended by a loop without judgement that applies the edits which a contract's answer has.

    python benchmarks/parity/mended.py [--only TEXT] [--out docs/tables/mended.md]

For each planted bug the recorder writes torch's trace, a contract is made of it, and port.py is the planted
model: a file of `ports` as its author would write it, or else the construction. The loop asks
`jaxpar contract check`, applies `edit.diff` with git, and asks again, until the contract is met or the answer
has no edit.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
ROUNDS = 4
PORT = """from flax import nnx

from benchmarks.parity import run

case = run.cases(True)[{name!r}]
flax_module = case.flax(nnx.Rngs(0))
layout = case.layout
"""
PAIRS = {"loss": "loss = case.loss[1]\n", "optimizer": "optimizer = case.optimizer[1]\n"}


def contract_of(folder: Path, name: str) -> Path:
    """Write a bug's contract with its port; return the contract's folder."""
    from benchmarks.parity import ports, proof, run
    from jaxpar.parity import recorder
    from jaxpar.parity.contract.making import make

    case = run.cases(True)[name]
    module, _, options = proof.pair(case, 0)
    options.pop("layout")
    for half in PAIRS:
        options[half] = options[half][0] if options[half] else None
    recorder.load().record(folder / "trace", module, **options)
    contract = make(str(folder / "trace"), str(folder / "contract"), "")
    halves = [line for half, line in PAIRS.items() if getattr(case, half)]
    source = ports.planted(name) or PORT.format(name=name) + "".join(halves)
    (contract / "port.py").write_text(source)
    return contract


def mended(contract: Path) -> tuple[bool, list[str]]:
    """Apply the edits of the answers; return whether the contract is met, and the causes that were mended."""
    from jaxpar.parity.contract import reproduction
    from jaxpar.parity.contract.checking import check

    reproduction.SECONDS = 0.0  # the loop reads no reproduction, so none is made smaller
    causes: list[str] = []
    for _ in range(ROUNDS):
        answer, _ = check(str(contract))
        if answer["met"] or not answer["edit"]:
            last = answer["cause"]["text"] if answer["cause"] else (answer["error"] or {}).get("text", "")
            return bool(answer["met"]), causes if answer["met"] else [*causes, f"not mended: {last}"]
        subprocess.run(
            ["git", "apply", "-"], input=answer["edit"]["diff"], cwd=contract, text=True, check=True,
        )  # fmt: skip
        causes.append(answer["cause"]["text"])
    return False, causes


def page(rows: dict[str, tuple[bool, list[str]]]) -> str:
    from benchmarks.parity import ports

    met = sum(row[0] for row in rows.values())
    lines = [
        "# Planted bugs mended by the edits of a contract's answers",
        "",
        "Printed by `benchmarks/parity/mended.py`. Bugs of plain code are lines of a port's own file,",
        "`benchmarks/parity/ports`; the port.py of the others has no more than the construction. In *mended*",
        "are the causes whose edits were applied, or the one without an edit. In *source*, the file.",
        "",
        "| frame | asked | met after the edits |",
        "|---|---|---|",
        f"| planted bugs of the proof | {len(rows)} | {met} |",
        "",
        "| bug | source | met | mended |",
        "|---|---|---|---|",
    ]
    for name, (is_met, causes) in rows.items():
        source = ports.PLANTS[name][0] if name in ports.PLANTS else "construction"
        text = "; ".join(causes).replace("|", "/")
        lines.append(f"| {name} | {source} | {'yes' if is_met else 'no'} | {text} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="the bugs whose name has this text")
    parser.add_argument("--out", type=Path, help="write the page there; otherwise it is printed")
    chosen = parser.parse_args()
    import jax

    from benchmarks.parity import bugs

    rows = {}
    for bug in bugs.BUGS:
        if chosen.only and chosen.only not in bug.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows[bug.name] = mended(contract_of(Path(folder), bug.name))
        print(f"{bug.name:45} {rows[bug.name]}", file=sys.stderr, flush=True)
        jax.clear_caches()
    chosen.out.write_text(page(rows)) if chosen.out else print(page(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
