"""Plant differences of types in one of two models, and see whether `parity.compare` names them.

    python benchmarks/precision/run.py --plants 20 --healthy 8 --seed 35

Each pair is a small transformer in torch and in Flax with a drawn width, depth, batch, type and side. A plant
counts as named if its operation is the only cause; a healthy pair if nothing is called a cause or a guess.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.precision.nets import FlaxNet, TorchNet, Types, flax_loss, torch_loss
from jaxpar import parity

WHY, GUESS, HARMLESS = "this is why", "not proven", "harmless"


@dataclass(frozen=True)
class Planted:
    """What each side does: types of operations, and options of the models and the optimizers.

    `sides` are those on which the operation may have another type; `words` are of the sentence that names it.
    """

    text: str
    words: tuple[str, ...]
    operation: str = ""
    sides: tuple[str, ...] = ("JAX", "torch")
    flax: dict[str, Any] = field(default_factory=dict)
    torch: dict[str, Any] = field(default_factory=dict)
    moments: str = ""


PLANTS = (
    Planted("the embedding's table is cast", ("embedding",), "embedding"),
    Planted("a scale", ("arithmetic",), "scale"),
    Planted("the norm", ("norm",), "norm"),
    Planted("the attention's scores", ("matmul",), "scores"),
    Planted("the softmax", ("softmax",), "softmax"),
    Planted("the residual", ("addition",), "residual"),
    Planted("a layer's dtype", ("matmul",), "mlp"),
    Planted("the activation", ("activation",), "activation"),
    Planted("the mean of the pooling", ("mean",), "pooling"),
    Planted("the logits are cast", ("values are rounded",), "logits"),
    Planted("the loss", ("loss",), "loss"),
    Planted(
        "preferred_element_type",
        ("matmul", "to float32"),
        flax={"types": {"scores": "bfloat16", "accumulated": "float32"}},
        torch={"types": {"scores": "bfloat16"}},
    ),
    Planted("the optimizer's moments", ("moments are kept",), moments="bfloat16"),
    Planted("the parameters", ("parameters are kept",), flax={"memory": jnp.bfloat16}),
    Planted("autocast in torch alone", ("matmul",), torch={"autocast": True}),
    Planted("dtype of all layers in JAX alone", ("matmul",), flax={"dense": "bfloat16"}),
)
BOTH = {"types": {"residual": "bfloat16"}}
HEALTHY = (
    Planted("float32 everywhere", ()),
    Planted(
        "autocast, and dtype= of the same operations",
        (),
        flax={"dense": "bfloat16"},
        torch={"autocast": True},
    ),
    Planted("the residual in bfloat16 on both sides", (), flax=BOTH, torch=BOTH),
    Planted(
        "the softmax in float16 on both sides",
        (),
        flax={"types": {"softmax": "float16"}},
        torch={"types": {"softmax": "float16"}},
    ),
    Planted("positions of few bits are cast", ("arithmetic",), "positions"),
    Planted("moments in float32 that both name", (), moments="float32"),
)


@dataclass(frozen=True)
class Result:
    text: str
    side: str
    causes: tuple[str, ...]
    guesses: tuple[str, ...]
    harmless: tuple[str, ...]
    seconds: float

    def names(self, words: Sequence[str]) -> bool:
        return len(self.causes) == 1 and all(word in self.causes[0] for word in words) and not self.guesses


def compared(planted: Planted, random: np.random.RandomState) -> Result:
    width, layers, rows, length = (
        int(random.choice(sizes)) for sizes in ([16, 24, 32], [1, 2], [4, 6], [5, 9])
    )
    dtype = str(random.choice(["bfloat16", "float16"]))
    side = str(random.choice(planted.sides))
    sides: dict[str, Types] = {"JAX": {}, "torch": {}}
    if planted.operation:
        sides[side] = {planted.operation: dtype}
    else:
        side, dtype = "", ""
    flax_types = planted.flax.get("types", sides["JAX"])
    torch_types = planted.torch.get("types", sides["torch"])
    torch.manual_seed(int(random.randint(2**31)))
    reference = TorchNet(width, layers, torch_types, planted.torch.get("autocast", False))
    options = {name: x for name, x in planted.flax.items() if name != "types"}
    tokens, labels = random.randint(0, 11, (rows, length)), random.randint(0, 11, rows)
    optimizer = None
    if planted.moments:
        optimizer = (
            lambda parameters: torch.optim.Adam(parameters, 1e-2),
            optax.adam(1e-2, mu_dtype=planted.moments),
        )
    start = time.perf_counter()
    comparison = parity.compare(
        reference,
        FlaxNet(width, layers, flax_types, **options),
        tokens,
        targets=labels,
        loss=(torch_loss(torch_types), flax_loss(flax_types)),
        optimizer=optimizer,
        steps=1,
        level="as it runs",
    )
    seconds = time.perf_counter() - start
    notes = [note for note in comparison.notes if note.startswith("precision: ")]
    causes, guesses, harmless = (tuple(n for n in notes if word in n) for word in (WHY, GUESS, HARMLESS))
    return Result(planted.text, f"{dtype} in {side}" if side else "", causes, guesses, harmless, seconds)


def drawn(plants: Sequence[Planted], count: int, random: np.random.RandomState) -> list[Planted]:
    order: list[int] = []
    while len(order) < count:
        order += [int(i) for i in random.permutation(len(plants))]
    return [plants[i] for i in order[:count]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plants", type=int, default=20)
    parser.add_argument("--healthy", type=int, default=8)
    parser.add_argument("--seed", type=int, default=35)
    options = parser.parse_args(arguments)
    random = np.random.RandomState(options.seed)
    pairs = [(planted, compared(planted, random)) for planted in drawn(PLANTS, options.plants, random)]
    healthy = [(planted, compared(planted, random)) for planted in drawn(HEALTHY, options.healthy, random)]
    print(page(options, pairs, healthy))


def page(
    options: Any, pairs: Sequence[tuple[Planted, Result]], healthy: Sequence[tuple[Planted, Result]]
) -> str:
    named = [result.names(planted.words) for planted, result in pairs]
    quiet = [not result.causes and not result.guesses for _, result in healthy]
    seconds = [result.seconds for _, result in (*pairs, *healthy)]
    command = f"--plants {options.plants} --healthy {options.healthy} --seed {options.seed}"
    lines = [
        "# Planted differences of types",
        "",
        f"Printed by `python benchmarks/precision/run.py {command}`.",
        f"The frame: {len(PLANTS)} differences of types, and {len(HEALTHY)} pairs that differ in none or",
        "in a harmless one, of a small transformer in torch and in Flax, with drawn sizes, type and side;",
        "drawn without return until all are drawn.",
        "[compare](../compare.md#which-type-is-the-reason) was developed on seeds 0, 1 and 34.",
        "",
        "| | |",
        "| --- | --- |",
        f"| differences whose operation is named, and nothing else | {sum(named)} of {len(named)} |",
        f"| pairs without a harmful difference in which nothing is blamed | {sum(quiet)} of {len(quiet)} |",
        f"| seconds for a pair of models, median (largest) | {np.median(seconds):.1f} ({max(seconds):.1f}) |",
        "",
        "| difference | narrow | named |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {r.text} | {r.side} | {_yes(x)} |" for (_, r), x in zip(pairs, named, strict=True)]
    lines += ["", "| healthy | narrow | nothing is blamed |", "| --- | --- | --- |"]
    lines += [f"| {r.text} | {r.side} | {_yes(x)} |" for (_, r), x in zip(healthy, quiet, strict=True)]
    missed = [r for (_, r), x in zip([*pairs, *healthy], [*named, *quiet], strict=True) if not x]
    if missed:
        lines += ["", "Not as it should be:", ""]
        lines += [f"* {r.text} ({r.side}): {'; '.join((*r.causes, *r.guesses)) or 'nothing'}" for r in missed]
    return "\n".join(lines)


def _yes(right: bool) -> str:
    return "yes" if right else "no"


if __name__ == "__main__":
    main()
