"""What a training step takes: jaxpar.train_step beside the same step in every other way, in one run.

    python benchmarks/train_step/run.py [--devices 4] [--rounds 9] [--processes 1] [--model mlp] [--json]

Same model, same host batch for every step, same number of (virtual) devices, SGD with momentum. The sides are
timed in turn, in an order that changes, a few steps each, and a ratio is that of the medians of the rounds.
torch's DDP runs in processes of its own, started before and asked for a round when it is its turn. Keras is a
side if it is installed (`pip install keras`).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jaxpar

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument(
    "--devices", type=int, default=4, help="virtual CPU devices, where there is no accelerator"
)
parser.add_argument("--rounds", type=int, default=9)
parser.add_argument("--processes", type=int, default=1, help="repeats all of it, and tells the medians")
parser.add_argument("--model", choices=["mlp", "resnet18"], action="append")
parser.add_argument("--batch", type=int, default=32, help="images for ResNet-18")
parser.add_argument("--size", type=int, default=32, help="their pixels")
parser.add_argument("--json", action="store_true")
options = parser.parse_args()
jaxpar.virtual_devices(options.devices)

import jax  # noqa: E402
import jax_sides  # noqa: E402
import keras_side  # noqa: E402
from batches import batch_of  # noqa: E402
from flax import nnx  # noqa: E402

HAND = "by hand, jit(shard_map)"
JAX = {
    HAND: jax_sides.by_hand,
    "jaxpar.train_step, DataParallel": jax_sides.ours(jaxpar.DataParallel),
    "jaxpar.train_step, DistributedDataParallel": jax_sides.ours(jaxpar.DistributedDataParallel),
    "jit with NamedSharding": jax_sides.named_sharding,
    "nnx.jit": jax_sides.nnx_jit,
    "pmap as in Flax's imagenet": jax_sides.flax_pmap,
}


def sides(name):
    """By name, what makes a step."""
    import torch_sides

    N, (x, t) = options.devices, batch_of(name, options.batch, options.size)
    made = {
        side: functools.partial(make, N, jax_sides.MODELS[name](nnx.Rngs(0)), x, t)
        for side, make in JAX.items()
    }
    made["Keras 3 DataParallel"] = functools.partial(keras_side.data_parallel, N, x, t)
    made["torch DataParallel"] = functools.partial(torch_sides.data_parallel, N, x, t)
    return made


def rounds_of(once):
    """n steps, waited for; seconds for each."""

    def run(n):
        start = time.perf_counter()
        for _ in range(n):
            loss = once()
        jax.block_until_ready(loss)
        return (time.perf_counter() - start) / n

    return run


def shuffled(sides, i):
    """In another order in every round: who follows torch's processes finds colder caches."""
    return random.Random(i).sample(list(sides), len(sides))


def measure(name):
    """Seconds of a step, by side."""
    import torch_sides

    n, runs = {"mlp": 50, "resnet18": 2}[name], {}
    for side, make in sides(name).items():
        try:
            runs[side] = rounds_of(make())
        except ImportError as error:
            print(f"without {side}: {error}", file=sys.stderr)
    ddp = torch_sides.DDP(name, options.devices, options.batch, options.size)
    runs[f"torch DDP, {options.devices} processes over gloo"] = ddp
    for run in runs.values():
        run(2)
    times = [{side: runs[side](n) for side in shuffled(runs, i)} for i in range(options.rounds)]
    ddp.end()
    return {side: statistics.median(row[side] for row in times) for side in runs}


def in_processes(models):
    """What `measure` gave in each of several processes: where memory lies makes a few percent."""
    if options.processes == 1:
        return [{name: measure(name) for name in models}]
    command = [sys.executable, *sys.argv, "--processes", "1", "--json"]
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(options.processes)
    ]
    return [json.loads(run.stdout)[0] for run in runs]


def main():
    models = options.model or ["mlp", "resnet18"]
    reports = in_processes(models)
    if options.json:
        print(json.dumps(reports, indent=1))
        return
    kind = jaxpar.devices()[0].device_kind
    print(
        f"{options.devices} x {kind}, jax {jax.__version__}, {os.cpu_count()} cores, {len(reports)} processes"
    )
    for name in models:
        print(f"\n{name}")
        for side in reports[0][name]:
            seconds = statistics.median(report[name][side] for report in reports)
            ratios = sorted(report[name][side] / report[name][HAND] for report in reports)
            spread = f"   ({ratios[0]:.3f} to {ratios[-1]:.3f})" if len(ratios) > 1 else ""
            print(f"  {side:44} {seconds * 1e3:8.2f} ms   {statistics.median(ratios):6.3f} x by hand{spread}")


main()
