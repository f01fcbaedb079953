"""A step of DistributedDataParallel against torch's and one written by hand in JAX: two processes over gloo.

    python benchmarks/distributed_data_parallel.py [--rounds 3] [--small]

Each side runs in jobs of its own, in turn, one device in each process. Rank r of all is held to core r and
torch computes with one thread, so that they have the same hardware. A step is forward, loss, backward, the
mean of the gradients and SGD with momentum, on a host batch.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

RANKS, ROWS, REPEATS = 2, 64, 7
STEPS = {"MLP": 60, "CNN": 8}
SHAPES = {"MLP": (256,), "CNN": (16, 16, 8)}  # Flax's order of axes


def batch(model: str) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(int(os.environ["RANK"]))
    x = random.randn(ROWS, *SHAPES[model]).astype(np.float32)
    return x, random.randint(0, 10, ROWS).astype(np.int32)


def seconds(step, model: str) -> float:
    """Of one step: the median of repeats; `step(n)` makes n and waits for the last."""
    step(5)
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        step(STEPS[model])
        times.append((time.perf_counter() - began) / STEPS[model])
    return statistics.median(times)


def torch_side(model: str) -> dict[str, float]:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
        atexit.register(torch.distributed.destroy_process_group)  # without it torch aborts now and then
    if model == "MLP":
        layers = [nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    else:
        layers = [nn.Conv2d(8, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
        layers += [nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    net = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(net.parameters(), 0.01, 0.9)
    x, y = batch(model)
    x, y = torch.tensor(np.moveaxis(x, -1, 1) if x.ndim == 4 else x).contiguous(), torch.tensor(y).long()

    def step(n: int) -> None:
        for _ in range(n):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()

    return {"seconds": seconds(step, model)}


def flax_model(model: str):
    import jax.numpy as jnp
    from flax import nnx

    import jaxpar

    rngs = nnx.Rngs(0)
    if model == "MLP":
        layers = [nnx.Linear(256, 512, rngs=rngs), nnx.relu, nnx.Linear(512, 512, rngs=rngs), nnx.relu]
        return nnx.Sequential(*layers, nnx.Linear(512, 10, rngs=rngs))
    layers = [nnx.Conv(8, 32, (3, 3), rngs=rngs), jaxpar.nn.BatchNorm(32), nnx.relu]
    layers += [nnx.Conv(32, 64, (3, 3), rngs=rngs), jaxpar.nn.BatchNorm(64), nnx.relu]
    return nnx.Sequential(*layers, lambda x: jnp.mean(x, (1, 2)), nnx.Linear(64, 10, rngs=rngs))


def cross_entropy(net, x, y):
    import optax

    return optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()


def hand_side(model: str) -> dict[str, float]:
    """jit(shard_map) with donation; loss, gradients and rank 0's statistics in one flat message."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx
    from jax.flatten_util import ravel_pytree
    from jax.sharding import AxisType, Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import jaxpar

    if not jaxpar.distributed.is_initialized():
        jaxpar.distributed.init_process_group()
    tx = optax.sgd(0.01, momentum=0.9)
    graphdef, params, rest = nnx.split(flax_model(model), nnx.Param, ...)
    mesh = Mesh(np.array(jax.devices()), ("d",), axis_types=(AxisType.Auto,))
    everywhere, spread = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))

    def per_device(params, rest, opt, x, y):
        def loss_of(params):
            net = nnx.merge(graphdef, params, rest, copy=True)
            return cross_entropy(net, x, y) / RANKS, nnx.state(net, nnx.Not(nnx.Param))

        (loss, rest), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        first = jax.lax.axis_index("d") == 0
        rest = jax.tree.map(lambda a: jnp.where(first, a, jnp.zeros_like(a)), rest)
        message, unravel = ravel_pytree((loss, gradients, rest))
        loss, gradients, rest = unravel(jax.lax.psum(message, "d"))
        updates, opt = tx.update(gradients, opt)
        return optax.apply_updates(params, updates), rest, opt, loss

    specs = (P(), P(), P(), P("d"), P("d"))
    mapped = jax.shard_map(per_device, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
    program = jax.jit(mapped, donate_argnums=(0, 1, 2))
    state = [jax.device_put(jax.tree.map(np.asarray, t), everywhere) for t in (params, rest, tx.init(params))]
    x, y = batch(model)

    def global_(a):
        return jax.make_array_from_callback((RANKS * len(a), *a.shape[1:]), spread, lambda _: a.copy())

    def step(n: int) -> None:
        for _ in range(n):
            *state[:], loss = program(*state, global_(x), global_(y))
        loss.block_until_ready()

    return {"seconds": seconds(step, model)}


def jaxpar_side(model: str) -> dict[str, float]:
    from flax import nnx

    import jaxpar

    if not jaxpar.distributed.is_initialized():
        jaxpar.distributed.init_process_group()
    net = jaxpar.DistributedDataParallel(flax_model(model))
    optimizer = nnx.Optimizer(net, jaxpar.optim.sgd(lr=0.01, momentum=0.9), wrt=nnx.Param)
    one = jaxpar.train_step(net, optimizer, cross_entropy)
    x, y = batch(model)
    one(x, y)

    def step(n: int) -> None:
        for _ in range(n):
            loss = one(x, y)
        loss.block_until_ready()

    taken = seconds(step, model)
    one.check()
    return {"seconds": taken} | collectives(one.lower(x, y).compile().as_text())


def collectives(text: str) -> dict[str, float]:
    """How many there are in a compiled program, and the bytes that they sum."""
    lines = [line for line in text.splitlines() if re.search(r"= .*\ball-\w+(-start)?\(", line)]
    sizes = []
    for line in lines:
        types = line.split("=", 1)[1].split("all-")[0]
        for bits, shape in re.findall(r"[fsu](\d+)\[([\d,]*)\]", types):
            sizes.append(int(bits) // 8 * int(np.prod([int(n) for n in shape.split(",") if n])))
    return {"collectives": len(lines), "bytes": sum(sizes)}


SIDES = {"torch": torch_side, "by hand": hand_side, "jaxpar": jaxpar_side}


def job(side: str, small: bool) -> dict[str, dict[str, float]]:
    """Both models in two processes; what rank 0 measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ours = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
    ours |= {"LOCAL_WORLD_SIZE": str(RANKS), "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--side", side, *(["--small"] if small else [])],
            env=os.environ | ours | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        printed = [process.communicate(timeout=600)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    for rank, process in enumerate(started):
        if code := process.wait():
            print(f"{side}: rank {rank} ended with code {code}", file=sys.stderr)
    # Gloo prints lines of its own, also after the figures.
    (figures,) = [line for line in printed[0].splitlines() if line.startswith("{")]
    return json.loads(figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help="one step, to try the program; no figures")
    options = parser.parse_args()
    if options.small:
        STEPS.update(dict.fromkeys(STEPS, 1))
    if options.side:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
        print(json.dumps({model: SIDES[options.side](model) for model in STEPS}))
        return
    found: dict[str, list] = {side: [] for side in SIDES}
    for _ in range(options.rounds):
        for side, results in found.items():
            results.append(job(side, options.small))
    print(f"{RANKS} processes x 1 CPU device, {ROWS} rows each, {options.rounds} rounds")
    for model in STEPS:
        times = {side: np.array([1e3 * one[model]["seconds"] for one in found[side]]) for side in SIDES}
        print(model)
        for side, mine in times.items():
            ratio = mine / times["torch"]
            print(
                f"  {side:8} {np.median(mine):8.3f} ms   {np.median(ratio):.3f} x torch "
                f"({ratio.min():.3f} to {ratio.max():.3f})"
            )
        sent = found["jaxpar"][0][model]
        print(f"  jaxpar sends {sent['collectives']:.0f} message, {sent['bytes'] / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
