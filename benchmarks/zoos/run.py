"""Models of JAX libraries and the torch models that they follow, put to jaxpar.parity.

    JAX_ZOOS=FOLDER python benchmarks/zoos/run.py [--only NAME ...] [--jobs 1] [--no-bugs] [--again]
                                                  [--out docs/tables/zoos.md]

FOLDER has a checkout of each library, by the repository's name. Each pair has a process of its own with a
time limit. What it said is kept in .cache/zoos, and asked again only with --again or --only. The exit
status is 1 if a pair has no verdict or a wrong one, or a bug is not caught.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
KEPT = ROOT / ".cache" / "zoos"
LIMIT = 420


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="pairs with this in their names, asked again"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--no-bugs", action="store_true", help="healthy pairs alone")
    parser.add_argument("--again", action="store_true", help="all pairs, also those that have an answer")
    parser.add_argument("--out", type=Path, help="write the page there; otherwise it is printed")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    from benchmarks import answers
    from benchmarks.zoos import libraries, page

    KEPT.mkdir(parents=True, exist_ok=True)
    names = [name for name in libraries.BY_NAME if not chosen.only or any(x in name for x in chosen.only)]
    wanted = [name for name in names if chosen.again or chosen.only or not kept(name).exists()]
    flags = ["--no-bugs"] * chosen.no_bugs
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for name, line in zip(wanted, pool.map(lambda name: asked(name, flags), wanted), strict=True):
            print(f"{name:56} {line}", file=sys.stderr, flush=True)
    known = {name: answer for name in libraries.BY_NAME if (answer := answers.read(kept(name)))}
    text = page.write(known)
    if chosen.out:
        chosen.out.write_text(text)
    elif not chosen.only:
        print(text)
    return int(not page.good(known))


def kept(name: str) -> Path:
    return KEPT / f"{''.join(c if c.isalnum() else '_' for c in name)}.json"


def asked(name: str, flags: list[str]) -> str:
    """In a process of its own, whose output is beside its answer; one line of what it said."""
    from benchmarks import answers

    kept(name).unlink(missing_ok=True)
    log = kept(name).with_suffix(".log")
    failed = answers.asked("benchmarks.zoos.ask", [name, kept(name), *flags], log, LIMIT)
    if failed:
        kept(name).write_text(json.dumps({"name": name, "verdict": "none", "error": failed}))
    answer = json.loads(kept(name).read_text())
    if "error" in answer:
        return f"no verdict: {answer['error'].splitlines()[0][:200]}"
    bug = answer["bug"] or {}
    marks = " ".join(key for key in ("caught", "placed", "named") if bug.get(key))
    said = f"{answer['verdict']:9} {answer['largest']:.1e} {answer['seconds']:5.0f} s"
    return f"{said}  {bug.get('name', '')}: {marks}"


if __name__ == "__main__":
    sys.exit(main())
