"""One visit of one side, in a process that ends with it, so that the next finds the whole memory.

python benchmarks/gpu/side.py ASK ANSWER     # ASK: JSON; ANSWER: a file, one for each rank
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ask import Answer, Ask

sys.path.append(str(Path(__file__).resolve().parents[2]))

WARM, STRETCHES = 3, 3
"""Steps before any that counts, and how often so many steps as asked for are timed."""


class Step(NamedTuple):
    """A side that is ready: starts a step, waits for its loss, counts bytes; `together` is a barrier."""

    once: Callable[[], Any]
    number: Callable[[Any], float]
    memory: Callable[[], int | None]
    together: Callable[[], None] = lambda: None


class Side(NamedTuple):
    """Which function of which file makes the step, and whether every card has a process of its own."""

    module: str
    make: str
    ranks: bool = False


HAND, SHARDED = "by hand, jit(shard_map)", "jit with NamedSharding"
THEIRS, DDP, COMPILED = "torch DataParallel", "torch DDP", "torch DDP, compiled"
SIDES = {
    HAND: Side("jax_steps", "by_hand"),
    "jaxpar DataParallel": Side("jax_steps", "data_parallel"),
    "jaxpar DDP, one process": Side("jax_steps", "distributed"),
    "jaxpar DDP, a process for each card": Side("jax_steps", "distributed_ranks", True),
    SHARDED: Side("jax_steps", "named_sharding"),
    THEIRS: Side("torch_steps", "data_parallel"),
    DDP: Side("torch_steps", "distributed", True),
    COMPILED: Side("torch_steps", "compiled", True),
}
REFERENCES = (HAND, SHARDED, THEIRS, DDP, COMPILED)
"""To which the others are compared."""


def measure(step: Step, steps: int) -> Answer:
    """Times stretches of steps; within one, nothing waits."""
    first = step.number(step.once())
    for _ in range(WARM - 1):
        step.number(step.once())
    stretches = []
    for _ in range(STRETCHES):
        step.together()
        began = time.perf_counter()
        for _ in range(steps):
            last = step.once()
        step.number(last)
        step.together()
        stretches.append((time.perf_counter() - began) / steps)
    return Answer(statistics.median(stretches), first, step.memory())


def visit(ask: Ask) -> Answer:
    side = SIDES[ask.side]
    try:
        return measure(getattr(importlib.import_module(side.module), side.make)(ask), ask.steps)
    except Exception as error:  # whatever it is becomes a row of the table
        traceback.print_exc()
        return Answer(why=f"{type(error).__name__}: {error}")


def main() -> None:
    answer = visit(Ask(**json.loads(sys.argv[1])))
    Path(f"{sys.argv[2]}.{os.environ.get('RANK', 0)}").write_text(json.dumps(dataclasses.asdict(answer)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a rank whose step failed must not wait for the others at its end


if __name__ == "__main__":
    main()
