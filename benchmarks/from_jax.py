"""examples/from_jax: numbers, lines and step times beside the programs in plain JAX, and a draw of programs.

    python benchmarks/from_jax.py --out docs/tables/from_jax.md
    python benchmarks/from_jax.py --small --only lm1b

A step is timed in one process on four virtual devices, the programs in turn, some steps each; a time is the
median of the rounds. An original for one device is timed twice: as it is, and with its batches divided over
the devices by a NamedSharding, which is what JAX's guides make of it.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "examples" / "from_jax"
sys.path[:0] = [str(ROOT), str(SCRIPTS)]

COMMIT, SEED, COUNT = "18f8f311c275d57f46d95e41b15aa97b454754c0", 30, 5
FRAME = (
    *("gemma", "imagenet", "linen_design_test/linear_regression", "lm1b", "mnist", "nlp_seq"),
    *(f"nnx_toy_examples/{name}" for name in ("01_functional_api", "02_lifted_transforms", "03_train_state")),
    *(f"nnx_toy_examples/{name}" for name in ("04_data_parallel_with_jit", "05_vae", "07_array_leaves")),
    *(f"nnx_toy_examples/{name}" for name in ("10_fsdp_and_optimizer", "hijax_basic", "hijax_demo")),
    *("ogbg_molpcba", "ppo", "seq2seq", "sst2", "vae", "wmt"),
)
"""In examples/ of google/flax at COMMIT: folders with a training loop, and files that take a gradient."""

CHOSEN = ("gemma", "imagenet", "lm1b", "mnist", "ppo", "seq2seq", "sst2", "vae")
"""Converted, or left out, before anything was drawn."""


DRAWN = {
    "nnx_toy_examples/10_fsdp_and_optimizer": "toy_mesh",
    "nnx_toy_examples/03_train_state": "toy_train_state",
    "nnx_toy_examples/hijax_basic": "hijax_basic",
    "linen_design_test/linear_regression": "linear_regression",
    "nnx_toy_examples/02_lifted_transforms": "toy_cached",
}


def draw() -> list[str]:
    """The programs that the seed draws from the rest of the frame."""
    return random.Random(SEED).sample(sorted(set(FRAME) - set(CHOSEN)), COUNT)


# ------------------------------------------------------------------------------------------------- time

Steps = Generator[tuple[Any, Any], None, None]


def one_device(script: str) -> bool:
    """Whether the original takes batches, and leaves their devices to JAX."""
    text = (SCRIPTS / f"{script}_plain.py").read_text()
    return "in batches(" in text and not re.search("device_count|NamedSharding", text)


def sharded(script: str) -> Steps:
    """The original's steps, with batches that lie on all devices."""
    import jax

    module = importlib.import_module(f"{script}_plain")
    mesh = jax.make_mesh((jax.device_count(),), ("data",), (jax.sharding.AxisType.Auto,))
    rows, batches = jax.NamedSharding(mesh, jax.P("data")), module.batches

    def on_all_devices(*args: Any, **kwargs: Any) -> Iterator[Any]:
        return (jax.device_put(batch, rows) for batch in batches(*args, **kwargs))

    module.batches = on_all_devices
    steps = module.train()
    next(steps)
    module.batches = batches
    return steps


def as_it_is(script: str) -> Steps:
    return importlib.import_module(script).train()


def seconds(steps: Steps, count: int) -> float:
    """Of one step, when `count` have been started and the last is done."""
    import jax

    begun = time.perf_counter()
    for _ in range(count):
        loss, _ = next(steps)
    jax.block_until_ready(loss)
    return (time.perf_counter() - begun) / count


def step_times(script: str, rounds: int, count: int) -> dict[str, float]:
    """Milliseconds of a step, for each side."""
    makers: dict[str, Callable[[], Steps]] = {"jaxpar": lambda: as_it_is(script)}
    makers["original"] = lambda: as_it_is(f"{script}_plain")
    if one_device(script):
        makers["sharded"] = lambda: sharded(script)
    sides = {name: make() for name, make in makers.items()}
    for steps in sides.values():
        seconds(steps, 3)
    times: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            times[name].append(1e3 * seconds(sides[name], count))
    for steps in reversed(sides.values()):
        steps.close()  # which leaves its mesh; the last that entered one comes first
    return {name: statistics.median(each) for name, each in times.items()}


# ------------------------------------------------------------------------------------------------- page


def measured(script: str) -> list[str]:
    """Lines changed, lines gone, and the differences, from the table that `compare.py` prints."""
    (row,) = re.findall(rf"^\| \[{script}\.py\].*$", (SCRIPTS / "README.md").read_text(), re.M)
    return [cell.strip() for cell in row.strip("|").split("|")][2:]


def row_of(script: str, rounds: int, count: int) -> list[str]:
    times = step_times(script, rounds, count)
    beside = times.get("sharded", times["original"])
    return [
        *(script, *measured(script), f"{times['jaxpar']:.2f}", f"{times['original']:.2f}"),
        f"{times['sharded']:.2f}" if "sharded" in times else "",
        f"{times['jaxpar'] / beside:.2f}",
    ]


HEADS = (
    *("program", "lines", "gone", "float64", "float32", "jaxpar, ms", "original, ms"),
    *("original, sharded, ms", "ratio"),
)


def table(heads: tuple[str, ...], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)) + "\n"


def page(rows: dict[str, list[str]]) -> str:
    from compare import BOUNDS

    drawn = []
    for i, program in enumerate(draw(), 1):
        done = rows.get(DRAWN[program])
        drawn.append([str(i), program, DRAWN[program], *(done[1:5] + done[8:] if done else [""] * 5)])
    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "flax", "optax"))
    bounds = tuple(BOUNDS.values())
    same = [all(float(x) <= bound for x, bound in zip(c[3:5], bounds, strict=True)) for c in rows.values()]
    quick = [float(cells[-1]) <= 1.05 for cells in rows.values()]
    bars = [
        ["the same numbers, at 1e-10 in float64 and 1e-6 in float32", "all", f"{sum(same)} of {len(rows)}"],
        ["a step takes at most 1.05 of the original's", "all", f"{sum(quick)} of {len(rows)}"],
        [f"drawn from Flax's examples (seed {SEED}), converted", "all", f"{len(DRAWN)} of {COUNT}"],
        ["a step beside the original's, median of the programs", "1.05", median_ratio(rows)],
    ]
    return PAGE.format(
        packages=packages,
        python=platform.python_version(),
        machine=platform.machine(),
        bars=table(("", "bar", "is"), bars),
        programs=table(HEADS, list(rows.values())),
        frame=", ".join(f"`{name}`" for name in FRAME),
        chosen=", ".join(f"`{name}`" for name in CHOSEN),
        drawn=table(
            ("draw", "program", "converted as", "lines", "gone", "float64", "float32", "ratio"), drawn
        ),
        commit=COMMIT,
        seed=SEED,
    )


def median_ratio(rows: dict[str, list[str]]) -> str:
    return f"{statistics.median(float(cells[-1]) for cells in rows.values()):.2f}"


PAGE = """# Programs of JAX users

Each program of [examples/from_jax](../from_jax.md#whole-programs) beside its original in plain JAX. This page
is printed by

    python benchmarks/from_jax.py --out docs/tables/from_jax.md

{packages}; Python {python} on {machine}, four virtual devices on two cores that others used, too.

*lines* are changed or new, *gone* are lines that nothing replaces. *float64* and *float32* are the largest
relative difference of a loss or a parameter in six steps, as `compare.py` there prints them. Times are of one
step, medians of interleaved rounds in one process. The *ratio* is beside the original with its batches
divided over the devices by a NamedSharding, or as it is if it divides them itself or has none. As it is, an
original for one device uses both cores of this machine without any exchange.

## In short

{bars}
## The programs

{programs}
## The draw

The frame are the training programs in `examples/` of google/flax at commit {commit}:
{frame}.

Chosen before were {chosen}. From the others, sorted, `random.Random({seed}).sample` drew:

{drawn}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="these programs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8, help="steps of a side in a round")
    parser.add_argument("--small", action="store_true", help="one round of one step")
    parser.add_argument("--out", help="the page; printed if left out")
    options = parser.parse_args()
    import jax

    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_enable_x64", True)
    from compare import names

    rounds, count = (1, 1) if options.small else (options.rounds, options.steps)
    rows = {}
    for script in options.only or names():
        rows[script] = row_of(script, rounds, count)
        print(" ".join(rows[script]), file=sys.stderr, flush=True)
        if options.out:
            Path(options.out).write_text(page(rows))
    if not options.out:
        print(page(rows))


if __name__ == "__main__":
    main()
