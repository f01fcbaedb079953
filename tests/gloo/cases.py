"""What both frameworks are given: weights, batches and ways to train, as NumPy arrays in torch's layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

IMAGES = ("cnn", "synchronised")
WIDE, NARROW, CHANNELS, SIDE = 12, 2, 2, 4
RATE, MOMENTUM = 0.1, 0.9
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
      model: a key of SHAPES.
      steps: optimizer steps; inside of join rank r makes r more.
      rows: of rank r in step t, rows[(r + t) % len(rows)]; outside of join rows[r % len(rows)].
      accumulate: backward passes for each step, all but the last in no_sync.
      join: None, or `divide_by_initial_world_size`.
      sync: `forward_sync_buffers`.
      hook: a key of HOOKS, or "".
      pairs: whether ranks 0 and 1 train one model, and ranks 2 and 3 another.
      left: passes in no_sync that rank 0 makes at the end of join, and that nothing follows.
    """

    model: str
    steps: int = 3
    rows: tuple[int, ...] = (4,)
    accumulate: int = 1
    join: bool | None = None
    sync: bool = True
    hook: str = ""
    pairs: bool = False
    left: int = 0

    @property
    def evaluates(self) -> bool:
        """Whether the trained model is run once more, in evaluation mode."""
        return self.model in IMAGES and self.join is None

    def rows_of(self, rank: int, step: int) -> int:
        return self.rows[(rank + (step if self.join is not None else 0)) % len(self.rows)]

    def left_of(self, rank: int) -> int:
        return self.left if rank == 0 else 0

    def steps_of(self, rank: int) -> int:
        return self.steps + (rank if self.join is not None else 0)


CASES = {
    "mlp": Case("mlp", 20),
    "cnn": Case("cnn", 20),
    "cnn, own buffers": Case("cnn", sync=False),
    "no_sync": Case("cnn", 2, accumulate=3),
    "uneven rows": Case("cnn", rows=(3, 2)),
    "join": Case("cnn", 2, rows=(3, 2, 4), join=True),
    "join, effective": Case("cnn", 2, rows=(3, 2, 4), join=False),
    "join, own buffers": Case("cnn", 2, join=True, sync=False),
    "unused": Case("unused"),
    "used by some": Case("unused by some"),
    "allreduce": Case("mlp", hook="allreduce"),
    "fp16": Case("mlp", hook="fp16"),
    "bf16": Case("mlp", hook="bf16"),
    "fp16 wrapper": Case("mlp", hook="fp16 wrapper"),
    "noop": Case("mlp", 2, hook="noop"),
    "powersgd": Case("wide", 6, hook="powersgd"),
    "powersgd, rank 2": Case("wide", 6, hook="powersgd, rank 2"),
    "powersgd, rank 3": Case("wide", 6, hook="powersgd, rank 3"),
    "powersgd, cold": Case("wide", 6, hook="powersgd, cold"),
    "powersgd, convolution": Case("kernel", 6, hook="powersgd, plain"),
    "join, no_sync": Case("mlp", 2, rows=(3, 2, 4), accumulate=2, join=True),
    "join, no_sync, effective": Case("mlp", 2, rows=(3, 2, 4), accumulate=2, join=False),
    "join, no_sync, cnn": Case("cnn", 3, accumulate=3, join=True),
    "join, no_sync, own buffers": Case("cnn", 2, accumulate=2, join=True, sync=False),
    "join, left in no_sync": Case("mlp", 2, accumulate=2, join=True, left=1),
    "pairs": Case("mlp", pairs=True),
    "pairs, cnn": Case("cnn", pairs=True),
    "pairs, join": Case("cnn", 2, join=True, pairs=True),
    "pairs, no_sync": Case("cnn", 2, accumulate=2, pairs=True),
    "pairs, powersgd": Case("wide", 4, hook="powersgd", pairs=True),
    "synchronised in pairs": Case("synchronised"),
    "pairs, synchronised": Case("synchronised", pairs=True),
}
PAIRS = [name for name, case in CASES.items() if case.pairs or case.model == "synchronised"]
OF_TWO = [name for name in CASES if name != "uneven rows" and name not in PAIRS]
OF_THREE = ["mlp", "join", "join, effective", "allreduce"]
"""1/3 has no exact float: scaling and dividing differ in the last bit."""
OF_FOUR = ["mlp", "cnn"]
SEVERAL_DEVICES = [*OF_FOUR, "no_sync", "uneven rows"]
"""On four devices that are not four processes."""

_MLP = {"a.weight": (4, 3), "a.bias": (4,), "b.weight": (NARROW, 4), "b.bias": (NARROW,)}
_WIDE = {"a.weight": (WIDE, 3 * WIDE), "a.bias": (WIDE,), "b.weight": (NARROW * WIDE, WIDE)}
_CNN = {
    "a.weight": (3, CHANNELS, 3, 3),
    "a.bias": (3,),
    "n.weight": (3,),
    "n.bias": (3,),
    "n.running_mean": (3,),
    "n.running_var": (3,),
    "b.weight": (NARROW, 3),
    "b.bias": (NARROW,),
}
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "mlp": _MLP,
    "cnn": _CNN,
    "wide": _WIDE,
    "kernel": {"a.weight": (8, CHANNELS, 3, 3), "b.weight": (NARROW, 8)},
    "synchronised": _CNN,
    "unused": _MLP | {"c.weight": (NARROW, 3)},
    "unused by some": _MLP | {"c.weight": (NARROW, 3)},
}
BUFFERS = ("n.running_mean", "n.running_var")


def weights(model: str, rank: int) -> Arrays:
    """Other ones on every rank: what wrapping has to make equal."""
    random = np.random.RandomState(100 + rank)
    drawn = {name: 0.4 * random.randn(*shape) for name, shape in SHAPES[model].items()}
    return {name: x**2 + 0.5 if name.endswith("var") else x for name, x in drawn.items()}


def batch(case: Case, rank: int, step: int, part: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets, and for each row whether it uses the parameter that is unused by some."""
    rows = case.rows_of(rank, step)
    random = np.random.RandomState(1000 * step + 10 * rank + part)
    features = {"mlp": (3,), "unused": (3,), "unused by some": (3,), "wide": (3 * WIDE,)}
    x = random.randn(rows, *features.get(case.model, (CHANNELS, SIDE, SIDE)))
    y = random.randn(rows, NARROW * WIDE if case.model == "wide" else NARROW)
    return x, y, np.full((rows, 1), float(case.model == "unused by some" and rank == 0))
