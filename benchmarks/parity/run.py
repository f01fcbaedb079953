"""The proof of parity: healthy pairs of torch and Flax modules, and planted bugs, all put to jaxpar.parity.

    python benchmarks/parity/run.py [--layers] [--architectures] [--bugs] [--numeric] [--fixed]
                                    [--small] [--jobs 2] [--out docs/tables/parity_proof.md]

Without a choice everything is run; --small takes the sizes of the tests for the architectures. The exit
status is 1 if a healthy pair is called different, a bug the same, or a bug of the catalogue is not named.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

PARTS = ("layers", "architectures", "bugs", "numeric", "fixed")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for part in PARTS:
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--small", action="store_true", help="architectures of the tests' sizes")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="write the page there; otherwise it is printed")
    chosen = parser.parse_args()
    if not any(getattr(chosen, part) for part in PARTS):
        for part in PARTS:
            setattr(chosen, part, True)
    return chosen


def main() -> int:
    chosen = options()
    from benchmarks.parity import page

    findings = find(chosen, functools.partial(ask, chosen))
    text = page.write(findings, "python benchmarks/parity/run.py" + " --small" * chosen.small)
    if chosen.out:
        chosen.out.write_text(text)
    else:
        print(text)
    return int(not good(findings))


def ask(chosen: argparse.Namespace, kind: str, names: list[str], seed: int = 0) -> list:
    """An answer for each name, from processes of their own: JAX keeps what it has compiled."""
    work = functools.partial(answer, kind, seed, chosen.small)
    with ProcessPoolExecutor(chosen.jobs, multiprocessing.get_context("spawn")) as pool:
        return [show(kind, seed, *each) for each in zip(names, pool.map(work, names), strict=True)]


def find(chosen: argparse.Namespace, ask: Callable[..., list]):
    """Asks what was chosen by `ask(kind, names, seed)`; --fixed needs the semantic answers too."""
    from benchmarks.parity import architectures, bugs, layers, page, proof

    def semantic(sections):
        found = iter(ask("semantic", names(itertools.chain(*sections.values()))))
        return {title: list(itertools.islice(found, len(rows))) for title, rows in sections.items()}

    findings = page.Findings()
    zoo = architectures.cases(chosen.small)
    healthy, planted = names([*layers.CASES, *zoo]), names(bugs.BUGS)
    if chosen.layers or chosen.fixed:
        findings.layers = semantic(layers.SECTIONS)
    if chosen.architectures or chosen.fixed:
        findings.architectures = semantic({"Whole models": zoo})
    if chosen.bugs or chosen.fixed:
        for title, rows in semantic(bugs.SECTIONS).items():
            findings.bugs[title] = list(zip(bugs.SECTIONS[title], rows, strict=True))
    if chosen.numeric:
        by_seed = [ask("numeric", healthy, seed) for seed in proof.SEEDS]
        findings.numeric = {name: each for name, *each in zip(healthy, *by_seed, strict=True)}
    if chosen.fixed:
        every = healthy + planted
        findings.fixed = dict(zip(every, ask("fixed", every), strict=True))
    return findings


def names(rows) -> list[str]:
    return [row.name for row in rows]


def answer(kind: str, seed: int, small: bool, name: str):
    """In a process of the pool, which has its own modules: only names travel."""
    from benchmarks.parity import fixed, proof

    case = cases(small)[name]
    return fixed.passes(case, seed) if kind == "fixed" else proof.ask(case, kind, seed)


@functools.cache
def cases(small: bool) -> dict:
    from benchmarks.parity import architectures, bugs, layers

    rows = (*layers.CASES, *architectures.cases(small))
    return {case.name: case for case in rows} | {bug.name: bug.case for bug in bugs.BUGS}


def show(kind: str, seed: int, name: str, found):
    """One line on stderr."""
    if kind == "fixed":
        numbers = " ".join("passes" if passes else "fails" for passes in found.values())
    else:
        verdict = "same" if found.same else "different"
        ratios = f"{found.ratio_rms:5.2f} {found.ratio_max:5.2f}"
        numbers = f"{verdict:9} {found.relative:.1e} {ratios} {found.seconds:6.1f} s"
    print(f"{kind:8} {seed} {name:45} {numbers}", file=sys.stderr, flush=True)
    return found


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
