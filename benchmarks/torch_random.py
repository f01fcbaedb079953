"""jaxpar.random against torch: a million numbers of each kind, permutations, a model's weights.

    python benchmarks/torch_random.py [--n 1000000] [--json]

Each draw is timed on both sides in turn, many short rounds of each, and the ratio is that of the
medians, so that a busy machine slows both alike.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from flax import nnx

import jaxpar
from jaxpar.random import Generator, torch_init

RANDPERM_BAR, INIT_BAR = 3.0, 2.0
"""randperm(1,000,000) against torch's time; seconds for 25 million parameters."""


class Convolutions(nnx.Module):
    """24 million parameters, most in convolutions."""

    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Conv(512, 512, (3, 3), rngs=rngs) for _ in range(10)])
        self.head = nnx.Linear(512, 1000, rngs=rngs)


class Words(nnx.Module):
    """25 million parameters, two thirds of them normal numbers."""

    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(50257, 320, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(320, 1280, rngs=rngs) for _ in range(22)])


class Attention(nnx.Module):
    """25 million parameters in blocks of attention."""

    def __init__(self, rngs: nnx.Rngs):
        E = 512
        self.attend = nnx.List([jaxpar.nn.MultiheadAttention(E, 8, rngs=rngs) for _ in range(8)])
        self.widen = nnx.List([nnx.Linear(E, 4 * E, rngs=rngs) for _ in range(8)])
        self.narrow = nnx.List([nnx.Linear(4 * E, E, rngs=rngs) for _ in range(8)])


MODELS = {
    Convolutions: ["layers", "head"],
    Words: ["embed", "layers"],
    Attention: ["attend", "widen", "narrow"],
}


def draws(n: int) -> list[tuple]:
    """What is timed: name, here, torch, and the bar if there is one."""
    import torch

    g, theirs = Generator(0), {"generator": torch.Generator().manual_seed(0)}
    x, tensor = np.empty(n, np.float32), torch.empty(n)
    return [
        ("randperm", lambda: g.randperm(n), lambda: torch.randperm(n, **theirs), RANDPERM_BAR),
        ("randint", lambda: g.randint(1000, (n,)), lambda: torch.randint(1000, (n,), **theirs), None),
        ("uniform_", lambda: g.uniform_(x, -0.1, 0.1), lambda: tensor.uniform_(-0.1, 0.1, **theirs), None),
        ("normal_", lambda: g.normal_(x), lambda: tensor.normal_(**theirs), None),
        ("bernoulli_", lambda: g.bernoulli_(x, 0.5), lambda: tensor.bernoulli_(0.5, **theirs), None),
    ]


def compare(options: argparse.Namespace) -> list[dict]:
    """Many short rounds of each side in turn; the ratio is that of the medians."""
    rows = []
    for name, ours, theirs, bar in draws(options.n):
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(options.rounds):
            for side, f in zip(times, (ours, theirs), strict=True):
                began = time.perf_counter()
                f()
                side.append(time.perf_counter() - began)
        here, there = (statistics.median(side) * 1e3 for side in times)
        rows.append({"draw": name, "n": options.n, "jaxpar_ms": here, "torch_ms": there, "bar": bar})
        say(
            options,
            f"{name:12} {options.n:,}  {here:8.2f} ms   torch {there:8.2f} ms   ratio {here / there:5.2f}"
            + (f"  (bar {bar})" if bar else ""),
        )
    return rows


def weights(options: argparse.Namespace) -> list[dict]:
    rows = []
    for model, order in MODELS.items():
        module = nnx.eval_shape(lambda model=model: model(nnx.Rngs(0)))
        times = []
        for _ in range(options.repeat):
            began = time.perf_counter()
            torch_init(module, 0, order=order)
            times.append(time.perf_counter() - began)
        state = nnx.to_flat_state(nnx.state(module, nnx.Param))
        millions = sum(math.prod(variable.get_raw_value().shape) for _, variable in state) / 1e6
        seconds = statistics.median(times)
        rows.append({"model": model.__name__, "millions": millions, "seconds": seconds, "bar": INIT_BAR})
        say(
            options,
            f"torch_init {model.__name__:13} {millions:5.1f} million parameters   {seconds:5.2f} s  "
            f"(bar {INIT_BAR})",
        )
    return rows


def say(options: argparse.Namespace, text: str) -> None:
    if not options.json:
        print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "jax")}
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    say(options, f"{os.cpu_count()} cores, {said}")
    rows = compare(options) + weights(options)
    if options.json:
        print(json.dumps({"cores": os.cpu_count(), **versions, "rows": rows}, indent=1))


main()
