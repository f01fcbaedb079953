"""Models that others wrote in both frameworks, and bugs planted in them, put to jaxpar.parity.

    python benchmarks/abroad/run.py [--only NAME ...] [--jobs 1] [--no-bugs | --add-bugs] [--again]
                                    [--out docs/tables/abroad.md]

Each pair has a process of its own with a time limit. What it said is kept in .cache/abroad, and asked again
only with --again or --only; --add-bugs keeps what was said of the healthy pairs. The exit status is 1 if a
pair has no verdict or a bug is not caught.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
KEPT = ROOT / ".cache" / "abroad"
LIMIT = 900


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these pairs, asked again")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    bugs = parser.add_mutually_exclusive_group()
    bugs.add_argument("--no-bugs", action="store_true", help="healthy pairs alone")
    bugs.add_argument("--add-bugs", action="store_true", help="bugs alone, in pairs that have none planted")
    parser.add_argument("--again", action="store_true", help="all pairs, also those that have an answer")
    parser.add_argument("--out", type=Path, help="write the page there; otherwise it is printed")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    from benchmarks import answers
    from benchmarks.abroad import page, pairs

    KEPT.mkdir(parents=True, exist_ok=True)
    names = chosen.only or [pair.name for pair in pairs.PAIRS]
    if chosen.add_bugs:
        wanted = [name for name in names if pairs.BY_NAME[name].bugs and lacks_bugs(name)]
    else:
        wanted = [name for name in names if chosen.again or chosen.only or not kept(name).exists()]
    flag = "--no-bugs" if chosen.no_bugs else "--add-bugs" if chosen.add_bugs else ""
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for name, line in zip(wanted, pool.map(lambda name: asked(name, flag), wanted), strict=True):
            print(f"{name:24} {line}", file=sys.stderr, flush=True)
    found = {pair.name: answers.read(kept(pair.name)) for pair in pairs.PAIRS}
    known = {name: answer for name, answer in found.items() if answer}
    text = page.write(known, "make abroad")
    if chosen.out:
        chosen.out.write_text(text)
    elif not chosen.only:
        print(text)
    return int(not page.good(known))


def kept(name: str) -> Path:
    return KEPT / f"{name}.json"


def lacks_bugs(name: str) -> bool:
    """Whether there is an answer for the healthy pair, and none for bugs."""
    answer = json.loads(kept(name).read_text()) if kept(name).exists() else {"error": "not asked"}
    return "error" not in answer and not answer["bugs"]


def asked(name: str, flag: str) -> str:
    """In a process of its own, whose output is beside its answer; one line of what it said."""
    from benchmarks import answers

    if flag != "--add-bugs":
        kept(name).unlink(missing_ok=True)
    arguments = [name, kept(name), *filter(None, [flag])]
    failed = answers.asked("benchmarks.abroad.ask", arguments, kept(name).with_suffix(".log"), LIMIT)
    if failed and flag == "--add-bugs":
        return f"no bugs planted: {failed}"
    if failed:
        kept(name).write_text(json.dumps({"name": name, "verdict": "none", "error": failed}))
    return summary(json.loads(kept(name).read_text()))


def summary(answer: dict[str, Any]) -> str:
    if "error" in answer:
        return f"no verdict: {answer['error'].splitlines()[0][:200]}"
    words = [
        f"{key} {sum(bug.get(key, False) for bug in answer['bugs'])}" for key in ("caught", "placed", "named")
    ]
    return f"{answer['verdict']:9} {answer['largest']:.1e} {answer['seconds']:6.1f} s  {', '.join(words)}"


if __name__ == "__main__":
    sys.exit(main())
