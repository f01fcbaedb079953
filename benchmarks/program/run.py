"""Judge steps with planted faults, healthy steps, and steps that a seed draws, and run the drawn ones.

    python benchmarks/program/run.py --drawn 1000 --seed 6000 --out docs/tables/program.md

With XLA's compiler for GPUs (`jaxpar[gpu-compiler]`) the first two are judged for 8 H100s too.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax

import jaxpar

jaxpar.virtual_devices(8)

from benchmarks.program import drawn, drawn_divided, faults, parts  # noqa: E402
from benchmarks.program.by_hand import BY_HAND, OPEN_BY_HAND  # noqa: E402
from benchmarks.program.guides import GUIDES  # noqa: E402
from benchmarks.program.optax_examples import OPTAX  # noqa: E402
from benchmarks.program.others import OTHERS  # noqa: E402
from jaxpar._tools.program.arguments import compiled_step  # noqa: E402
from jaxpar._tools.program.program import judged  # noqa: E402


def report_of(make: Callable[..., Any], *arguments: Any) -> jaxpar.ProgramReport:
    step, shapes, options = make(*arguments)
    return jaxpar.program(step, *shapes, **options)


def without_a_sum(text: str) -> Iterator[tuple[str, str]]:
    """Yield a program's text without one of its all-reduces, as a compiler that forgets one writes it."""
    for match in re.finditer(r" all-reduce(-start)?\((%[^)]*)\), ([^\n]*)", text):
        operation = " tuple(" if "," in match.group(2) else " copy("
        name = text[: match.start()].rsplit("%", 1)[1].split(" ")[0]
        yield name, text[: match.start()] + operation + match.group(2) + ")" + text[match.end() :]


def forgotten(name: str) -> tuple[int, int]:
    """Forget each all-reduce of a step; return how many reach the state, and how many of these are named."""
    made, shapes, _ = faults.PROGRAMS[name]("")
    step = compiled_step(made, shapes, {}, None)
    needed = {at for leaf in judged(step).leaves if leaf.state for at in leaf.reductions}
    asked = named = 0
    whole = step.text
    for at, step.text in without_a_sum(whole):
        if at in needed:
            asked += 1
            named += judged(step).verdict == "wrong"
    return asked, named


def planted() -> tuple[dict[str, list[int]], list[str]]:
    """Count by program the faults and those that are named; and list the others."""
    counts: dict[str, list[int]] = {}
    missed = []
    for (name, fault), kind in faults.FAULTS.items():
        report = report_of(faults.PROGRAMS[name], fault)
        named = kind in {f.kind for f in report.findings}
        row = counts.setdefault(name, [0, 0])
        row[0] += 1
        row[1] += named
        if not named:
            missed.append(f"* {name}, {fault}: {report.verdict}")
    return counts, missed


def numbers_of(drawing: ModuleType, seeds: range) -> tuple[Counter[str], list[str]]:
    """Judge the steps that a module draws, run them, and count verdicts and refuted proofs."""
    counts: Counter[str] = Counter()
    lines = []
    for seed in seeds:
        step = drawing.draw(seed)
        report = jaxpar.program(step.run, *step.arguments)
        right = {leaf.path.split("'")[1] for leaf in report.leaves if leaf.state and leaf.verdict == "right"}
        counts[report.verdict] += 1
        counts["arrays right"] += len(right)
        if reasons := drawing.refuted(step, right):
            counts["refuted"] += 1
            lines.append(f"* {drawing.__name__}, seed {seed}: {'; '.join(reasons)}")
        if report.verdict == "wrong" and not drawing.refuted(step, set(step.arguments[0])):
            counts["unconfirmed"] += 1
    return counts, lines


def gpus() -> list[Any]:
    try:
        return list(jaxpar.topology("h100"))
    except ImportError:
        return []


HEAD = """\
| frame | seed | asked | named | healthy asked | false alarms | not proven |
|---|---|---|---|---|---|---|"""


def page(count: int, seed: int) -> str:
    begun = time.perf_counter()
    lines = [HEAD]
    notes: list[str] = []
    for platform, devices in (("8 virtual CPU devices", []), ("8 H100s", gpus())):
        if platform == "8 H100s" and not devices:
            continue
        parts.POOL[:] = devices
        counts, missed = planted()
        notes += missed
        healthy = {f"{n} {f}": report_of(faults.PROGRAMS[n], f) for n, f in faults.HEALTHY}
        alarms = sum(bool(r.findings) or r.verdict == "wrong" for r in healthy.values())
        still_open = sum(r.verdict == "not proven" for r in healthy.values())
        asked, named = (sum(row[k] for row in counts.values()) for k in (0, 1))
        cells = f"{asked} | {named} | {len(healthy)} | {alarms} | {still_open}"
        lines.append(f"| steps by hand, {platform} | - | {cells} |")
        others = {
            name: report_of(make) for name, make in (OTHERS | GUIDES | OPTAX | BY_HAND | OPEN_BY_HAND).items()
        }
        alarms = sum(r.verdict == "wrong" for r in others.values())
        still_open = sum(r.verdict == "not proven" for r in others.values())
        cells = f"- | - | {len(others)} | {alarms} | {still_open}"
        lines.append(f"| steps after others' examples, {platform} | - | {cells} |")
    parts.POOL.clear()
    pairs = [forgotten(name) for name in faults.PROGRAMS]
    asked, named = (sum(p[k] for p in pairs) for k in (0, 1))
    lines.append(f"| a compiled step without one all-reduce | - | {asked} | {named} | - | - | - |")
    jax.config.update("jax_enable_x64", True)
    seeds = range(seed, seed + count)
    results = [numbers_of(drawing, seeds) for drawing in (drawn, drawn_divided)]
    jax.config.update("jax_enable_x64", False)
    rows = (
        ("right", "right"),
        ("not proven", "not proven"),
        ("wrong", "wrong"),
        ("arrays that are proven", "arrays right"),
        ("steps with a proven array that the numbers refute", "refuted"),
        ("wrong steps that the numbers do not confirm", "unconfirmed"),
    )
    table = (f"| {text} | {' | '.join(str(counts[key]) for counts, _ in results)} |" for text, key in rows)
    head = f"""\
# Judged programs

Printed by `python benchmarks/program/run.py --drawn {count} --seed {seed}`.
[program](../program.md) was developed on the seeds 0 to 119, and mended after three of 1000 to 2499 and
one of 3000 to 3199, whose proofs the numbers refuted.

{chr(10).join(lines)}

A false alarm is any finding in a healthy step by hand, and "wrong" for one after others' examples.
Statistics of all rows that lose their all-reduce become each device's own, which is a right step of a
different model: that is why some are not named.

| drawn steps, run on 8 virtual devices | replicated weights | divided weights |
|---|---|---|
| seeds | {seed} to {seed + count - 1} | the same |
{chr(10).join(table)}
"""
    print(f"{time.perf_counter() - begun:.0f} s", file=sys.stderr)
    return "\n".join([head, *notes, *(line for _, lines in results for line in lines)]).rstrip() + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drawn", type=int, default=500)
    parser.add_argument("--seed", type=int, default=6000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    text = page(options.drawn, options.seed)
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
