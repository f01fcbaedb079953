"""The proof of parity: healthy pairs of torch and Flax modules, and planted bugs, all put to jaxpar.parity.

    python benchmarks/parity/run.py [--layers] [--architectures] [--bugs] [--numeric] [--fixed]
                                    [--small] [--out docs/parity_proof.md]

Without a choice everything is run; --small takes the sizes of the tests for the architectures. The exit
status is 1 if a healthy pair is called different, a bug the same, or a bug of the catalogue is not named.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

PARTS = ("layers", "architectures", "bugs", "numeric", "fixed")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for part in PARTS:
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--small", action="store_true", help="architectures of the tests' sizes")
    parser.add_argument("--out", type=Path, help="write the page there; otherwise it is printed")
    chosen = parser.parse_args()
    if not any(getattr(chosen, part) for part in PARTS):
        for part in PARTS:
            setattr(chosen, part, True)
    return chosen


def main() -> int:
    chosen = options()
    from benchmarks.parity import page

    findings = find(chosen)
    text = page.write(findings, "python benchmarks/parity/run.py" + " --small" * chosen.small)
    if chosen.out:
        chosen.out.write_text(text)
    else:
        print(text)
    return int(not good(findings))


def find(chosen: argparse.Namespace):
    """Runs what was chosen, one line on stderr for each comparison."""
    from benchmarks.parity import architectures, bugs, fixed, layers, page, proof

    zoo = architectures.cases(chosen.small)
    healthy = [*layers.CASES, *zoo]
    findings = page.Findings()
    if chosen.layers or chosen.fixed:
        findings.layers = each(layers.SECTIONS, lambda case: show(proof.ask(case)))
        findings.rounded = [(why, show(proof.ask(case))) for why, case in layers.ROUNDED.items()]
    if chosen.architectures or chosen.fixed:
        findings.architectures = each({"Whole models": zoo}, lambda case: show(proof.ask(case)))
    if chosen.bugs or chosen.fixed:
        findings.bugs = each(bugs.SECTIONS, lambda bug: (bug, show(proof.ask(bug.case))))
    if chosen.numeric:
        for case in healthy:
            answers = [show(proof.ask(case, "numeric", seed)) for seed in proof.SEEDS]
            findings.numeric[case.name] = answers
    if chosen.fixed:
        findings.fixed = {case.name: fixed.passes(case) for case in [*healthy, *(b.case for b in bugs.BUGS)]}
    return findings


def each(sections, do):
    return {title: [do(case) for case in cases] for title, cases in sections.items()}


def show(answer):
    word = "same" if answer.same else "different"
    numbers = f"{answer.relative:.1e} {answer.ratio_rms:.2f} {answer.ratio_max:.2f}"
    print(f"{answer.name:45} {word:9} {numbers} {answer.seconds:6.1f} s", file=sys.stderr)
    return answer


def good(findings) -> bool:
    from benchmarks.parity.page import named

    numeric = itertools.chain(*findings.numeric.values())
    return (
        all(answer.same for answer in [*findings.healthy, *numeric])
        and not any(answer.same for _, answer in findings.planted)
        and all(named(bug, answer) for bug, answer in findings.planted if bug.cause)
    )


if __name__ == "__main__":
    sys.exit(main())
