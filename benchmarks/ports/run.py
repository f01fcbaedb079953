"""torch modules that others wrote, ported to Flax and proven.

    python benchmarks/ports/run.py [--only GROUP GROUP/NAME ...] [--half development] [--first N]
                                   [--jobs 1] [--again] [--out PAGE]

Each case has a process of its own with a time limit. What was said of it, and its file, are kept in
.cache/ports, and it is asked again only with --again or --only. The page has all groups, from what is kept.
The exit status is 1 if a file is different from its torch module.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
KEPT = ROOT / ".cache" / "ports"
LIMIT = 1800
HALVES = ("development", "reported")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="GROUP[/NAME]", help="these, asked again")
    parser.add_argument("--half", choices=HALVES, help="of the groups that are all of a library")
    parser.add_argument("--first", type=int, metavar="N", help="so many of each group, in the order drawn")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--again", action="store_true", help="all, also those that have an answer")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one of them")
    parser.add_argument("--out", type=Path, help="write the page there; otherwise it is printed")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    from benchmarks import answers
    from benchmarks.ports import models, page

    names = chosen_names(chosen.only, list(models.BY_NAME))
    if chosen.half:
        names = [name for name in drawn(HALVES.index(chosen.half), chosen.first) if name in names]
    once = not chosen.again and (chosen.half or not chosen.only)
    wanted = [name for name in names if not (once and kept(name).exists())]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for name, line in zip(wanted, pool.map(lambda name: asked(name, chosen.limit), wanted), strict=True):
            print(f"{name:44} {line}", file=sys.stderr, flush=True)
    found = {name: answers.read(kept(name)) for name in models.BY_NAME}
    known = {name: answer for name, answer in found.items() if answer}
    if chosen.out:
        chosen.out.write_text(page.write(known, "make ports"))
    elif not chosen.only:
        print(page.write(known, "make ports"))
    return int(not page.good({name: known[name] for name in names if name in known}))


def drawn(half: int, first: int | None) -> list[str]:
    """A sample of the half of each frame, by turns of the frames, so that a run may be stopped."""
    from benchmarks.ports import halves, models

    cases = {group: [case.name for case in models.GROUPS[group]] for group in models.FRAMES}
    columns = [
        [f"{group}/{name}" for name in halves.halves(names)[half][:first]] for group, names in cases.items()
    ]
    return [name for row in itertools.zip_longest(*columns) for name in row if name]


def chosen_names(only: list[str] | None, names: list[str]) -> list[str]:
    """Those of a group, or of one name."""
    if not only:
        return names
    found = [name for name in names if {name, name.partition("/")[0]} & set(only)]
    for each in only:
        if not any(each in (name, name.partition("/")[0]) for name in found):
            raise SystemExit(f"--only {each}: there is no such group or case")
    return found


def kept(name: str) -> Path:
    group, _, case = name.partition("/")
    return KEPT / group / f"{''.join(c if c.isalnum() else '_' for c in case)}.json"


def asked(name: str, limit: float) -> str:
    """In a process of its own, whose output is beside its answer; one line of what it said."""
    from benchmarks import answers

    path = kept(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    failed = answers.asked("benchmarks.ports.ask", [name, path], path.with_suffix(".log"), limit)
    if failed:
        path.write_text(json.dumps({"name": name, "status": 3, "failure": failed, "written": False}))
    return summary(json.loads(path.read_text()))


def summary(answer: dict[str, Any]) -> str:
    from benchmarks.ports import page

    verdict = page.verdict(answer)
    if answer.get("proofs"):
        verdict += f", {answer['largest']:.1e}"
    if answer["written"]:
        verdict += f", {answer['lines']} lines for {answer['torch_lines']}"
    said = [verdict, *(f"  {hole}" for hole in answer.get("holes", ()))]
    said += [f"  not in the source: {', '.join(answer['names'])}"] if answer.get("names") else []
    said += [f"  ruff: {answer['ruff']}"] if answer.get("ruff") else []
    return "\n".join(said) + (f"  {answer['processor']:.0f} s" if "processor" in answer else "")


if __name__ == "__main__":
    sys.exit(main())
