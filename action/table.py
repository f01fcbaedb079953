"""Compare each spec with what torch computed, and print a Markdown table beside the last answers.

    python table.py [--answers FILE] SPEC ...

A spec NAME.py is compared with NAME.trace/ (of `jaxpar.parity.recorder`) or NAME.safetensors (of
`jaxpar.parity.record`), else with its own torch model. The table goes to $GITHUB_STEP_SUMMARY, too. The exit
code is 0 if all are the same, 1 if one differs, and 2 if one gave no verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HEAD = ("model", "verdict", "before", "largest difference", "first difference", "cause")
VERDICTS = {0: "same", 1: "**different**", 2: "**no verdict**"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answers", type=Path, help="the last answers; this run's replace them")
    parser.add_argument("specs", nargs="+", type=Path, metavar="SPEC")
    options = parser.parse_args()
    before = {}
    if options.answers and options.answers.exists():
        before = json.loads(options.answers.read_text())
    answers = {str(spec): answer_of(spec) for spec in options.specs}
    if options.answers:
        options.answers.write_text(json.dumps(answers, indent=1))
    table = markdown(answers, before)
    print(table)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(summary, "a", encoding="utf-8") as file:
            file.write(table + "\n")
    return max(answer["code"] for answer in answers.values())


def answer_of(spec: Path) -> dict[str, Any]:
    """Return the exit code of `jaxpar parity`, and what its JSON says of the differences."""
    references = {"--against": spec.with_suffix(".trace"), "--check": spec.with_suffix(".safetensors")}
    reference = next(([option, str(path)] for option, path in references.items() if path.exists()), [])
    command = [sys.executable, "-m", "jaxpar", "parity", "--json", *reference, str(spec)]
    run = subprocess.run(command, capture_output=True, text=True)
    try:
        comparison = json.loads(run.stdout)
    except json.JSONDecodeError:
        reason = (run.stderr.strip() or "-").splitlines()[-1].strip()
        return {"code": 2, "largest": None, "place": "", "cause": reason}
    divergence = comparison["divergence"] or {"where": "", "causes": []}
    sizes = [row["difference"]["relative"] for row in comparison["rows"]]
    return {
        "code": run.returncode,
        "largest": max((size for size in sizes if size is not None), default=None),
        "place": divergence["where"],
        "cause": "; ".join(cause["text"] for cause in divergence["causes"]),
    }


def markdown(answers: dict[str, dict[str, Any]], before: dict[str, dict[str, Any]]) -> str:
    rows = [HEAD, ("---",) * len(HEAD)]
    for spec, answer in answers.items():
        last = VERDICTS[before[spec]["code"]].strip("*") if spec in before else "-"
        largest = "-" if answer["largest"] is None else f"{answer['largest']:.1e}"
        rows.append((spec, VERDICTS[answer["code"]], last, largest, answer["place"], answer["cause"]))
    cells = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


if __name__ == "__main__":
    raise SystemExit(main())
