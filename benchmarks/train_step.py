"""What a training step takes: jaxpar.train_step beside the same step in every other way, in one run.

    python benchmarks/train_step.py [--devices 4] [--rounds 9] [--model mlp] [--json]

Same model, same host batch for every step, same number of (virtual) devices, SGD with momentum. The sides are
timed in turn, a few steps each, and a ratio is that of the medians of the rounds. torch's DDP runs in
processes of its own, started before and asked for a round when it is its turn. Keras is a side if it is
installed (`pip install keras`). With --precision bfloat16 the JAX sides that can, do.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

import jaxpar  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument(
    "--devices", type=int, default=4, help="virtual CPU devices, where there is no accelerator"
)
parser.add_argument("--rounds", type=int, default=9)
parser.add_argument("--model", choices=["mlp", "resnet18"], action="append")
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--size", type=int, default=32, help="pixels of the images for ResNet-18")
parser.add_argument("--json", action="store_true")
parser.add_argument("--torch-rank", help=argparse.SUPPRESS)
options = parser.parse_args()
N = options.devices


# ------------------------------------------------------------------------------------------- torch
def torch_model(name):
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, i, o, stride):
            super().__init__()
            self.c1, self.b1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
            self.c2, self.b2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
            self.short = nn.Conv2d(i, o, 1, stride, bias=False) if stride > 1 or i != o else nn.Identity()

        def forward(self, x):
            y = self.b2(self.c2(torch.relu(self.b1(self.c1(x)))))
            return torch.relu(y + self.short(x))

    if name == "mlp":
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    blocks = [Block(max(o // 2, 64) if s > 1 else o, o, s) for o in (64, 128, 256, 512) for s in _strides(o)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), *blocks, *head)


def _strides(channels):
    return (1, 1) if channels == 64 else (2, 1)


def batch_of(name):
    random, B = np.random.RandomState(0), options.batch if name == "resnet18" else 128
    shape = (options.size, options.size, 3) if name == "resnet18" else (64,)
    out = 10 if name == "resnet18" else 64
    return random.randn(B, *shape).astype(np.float32), random.randn(B, out).astype(np.float32)


def torch_step(net, x, t, transpose):
    import torch

    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step():
        rows = torch.from_numpy(x.transpose(0, 3, 1, 2) if transpose else x)
        loss = ((net(rows) - torch.from_numpy(t)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def torch_rank(name):
    """One process of torch's DDP: a round for every line on stdin."""
    import torch

    rank = int(os.environ["RANK"])
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // N))
    torch.distributed.init_process_group("gloo")
    x, t = (a[rank * len(a) // N : (rank + 1) * len(a) // N] for a in batch_of(name))
    net = torch.nn.parallel.DistributedDataParallel(torch_model(name))
    step = torch_step(net, x, t, name == "resnet18")
    for line in sys.stdin:
        torch.distributed.barrier()
        start = time.perf_counter()
        for _ in range(int(line)):
            step()
        torch.distributed.barrier()
        print((time.perf_counter() - start) / int(line), flush=True)
    torch.distributed.destroy_process_group()


if options.torch_rank:
    torch_rank(options.torch_rank)
    sys.exit()

jaxpar.virtual_devices(N)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

MESH = jax.make_mesh((N,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
TX = optax.sgd(0.01, momentum=0.9)


class Block(nnx.Module):
    def __init__(self, i, o, stride, rngs):
        conv = lambda i, o, k, s: nnx.Conv(i, o, (k, k), strides=s, use_bias=False, rngs=rngs)  # noqa: E731
        self.c1, self.b1 = conv(i, o, 3, stride), jaxpar.nn.BatchNorm(o)
        self.c2, self.b2 = conv(o, o, 3, 1), jaxpar.nn.BatchNorm(o)
        self.short = conv(i, o, 1, stride) if stride > 1 or i != o else None

    def __call__(self, x):
        y = self.b2(self.c2(nnx.relu(self.b1(self.c1(x)))))
        return nnx.relu(y + (x if self.short is None else self.short(x)))


class ResNet18(nnx.Module):
    def __init__(self, rngs):
        self.stem, self.norm = nnx.Conv(3, 64, (3, 3), use_bias=False, rngs=rngs), jaxpar.nn.BatchNorm(64)
        widths = [(o, s) for o in (64, 128, 256, 512) for s in _strides(o)]
        self.blocks = nnx.List([Block(o // 2 if s > 1 else o, o, s, rngs) for o, s in widths])
        self.head = nnx.Linear(512, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class MLP(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(64, 64, rngs=rngs) for _ in range(3)])

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


def squared(net, x, t):
    return ((net(x) - t) ** 2).mean()


# ------------------------------------------------------------------------------------------- sides
def ours(wrap):
    def make(model, x, t):
        net = wrap(model)
        step = jaxpar.train_step(net, nnx.Optimizer(net, TX, wrt=nnx.Param), squared)
        return lambda: step(x, t)

    return make


def by_hand(model, x, t):
    """jit(shard_map) with donation: the loss of each device, gradients summed, device 0's statistics."""
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def per_device(params, rest, opt, x, t):
        def loss_of(params):
            net = nnx.merge(graphdef, params, rest, copy=True)
            return squared(net, x, t) / N, nnx.state(net, nnx.Not(nnx.Param))

        (loss, new), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        first = jax.lax.axis_index("d") == 0
        new = jax.tree.map(lambda a: jnp.where(first, a, jnp.zeros_like(a)), new)
        loss, gradients, new = jax.lax.psum((loss, gradients, new), "d")
        updates, opt = TX.update(gradients, opt)
        return optax.apply_updates(params, updates), new, opt, loss

    specs = (P(), P(), P(), P("d"), P("d"))
    mapped = jax.shard_map(per_device, mesh=MESH, in_specs=specs, out_specs=P(), check_vma=False)
    return repeated(jax.jit(mapped, donate_argnums=(0, 1, 2)), params, rest, x, t)


def named_sharding(model, x, t):
    """jit over sharded arrays: XLA divides the program; BatchNorm sees all rows."""
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def step(params, rest, opt, x, t):
        def loss_of(params):
            net = nnx.merge(graphdef, params, rest, copy=True)
            return squared(net, x, t), nnx.state(net, nnx.Not(nnx.Param))

        (loss, rest), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, opt = TX.update(gradients, opt)
        return optax.apply_updates(params, updates), rest, opt, loss

    return repeated(jax.jit(step, donate_argnums=(0, 1, 2)), params, rest, x, t)


def repeated(step, params, rest, x, t):
    copies = lambda tree: jax.device_put(jax.tree.map(jnp.copy, tree), NamedSharding(MESH, P()))  # noqa: E731
    state = [copies(params), copies(rest), copies(TX.init(params))]

    def once():
        *state[:], loss = step(*state, *jax.device_put((x, t), NamedSharding(MESH, P("d"))))
        return loss

    return once


def nnx_jit(model, x, t):
    """The idiom of Flax's guide: nnx.jit around net and optimizer, batch sharded."""
    optimizer = nnx.Optimizer(model, TX, wrt=nnx.Param)
    for thing in (model, optimizer):
        nnx.update(thing, jax.device_put(nnx.state(thing), NamedSharding(MESH, P())))

    @nnx.jit
    def step(net, optimizer, x, t):
        loss, gradients = nnx.value_and_grad(squared)(net, x, t)
        optimizer.update(net, gradients)
        return loss

    return lambda: step(model, optimizer, *jax.device_put((x, t), NamedSharding(MESH, P("d"))))


def flax_pmap(model, x, t):
    """Flax's imagenet example: replicated state, pmap, prefetch_to_device."""
    from flax import jax_utils

    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    devices = jaxpar.devices()[:N]

    def step(state, batch):
        params, rest, opt = state
        x, t = batch

        def loss_of(params):
            net = nnx.merge(graphdef, params, rest, copy=True)
            return squared(net, x, t), nnx.state(net, nnx.Not(nnx.Param))

        (loss, rest), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        gradients, loss = jax.lax.pmean((gradients, loss), "d")
        updates, opt = TX.update(gradients, opt)
        return (optax.apply_updates(params, updates), rest, opt), loss

    def forever():
        while True:
            yield tuple(a.reshape(N, len(a) // N, *a.shape[1:]) for a in (x, t))

    mapped = jax.pmap(step, "d", devices=devices, donate_argnums=(0,))
    state = [jax_utils.replicate((params, rest, TX.init(params)), devices)]
    batches = jax_utils.prefetch_to_device(forever(), 2, devices)

    def once():
        state[0], loss = mapped(state[0], next(batches))
        return loss

    return once


def keras_side(model, x, t):
    """Keras 3 on JAX with its DataParallel."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=[f"cpu:{i}" for i in range(N)])
    )
    layers = keras.layers

    def block(y, o, stride, i):
        z = layers.Conv2D(o, 3, stride, "same", use_bias=False)(y)
        z = layers.ReLU()(layers.BatchNormalization()(z))
        z = layers.BatchNormalization()(layers.Conv2D(o, 3, 1, "same", use_bias=False)(z))
        short = layers.Conv2D(o, 1, stride, use_bias=False)(y) if stride > 1 or i != o else y
        return layers.ReLU()(layers.Add()([z, short]))

    start = y = layers.Input(x.shape[1:])
    if x.ndim == 2:
        for activation in ("relu", "relu", None):
            y = layers.Dense(64, activation)(y)
    else:
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(64, 3, 1, "same", use_bias=False)(y)))
        for o in (64, 128, 256, 512):
            for s in _strides(o):
                y = block(y, o, s, o // 2 if s > 1 else o)
        y = layers.Dense(10)(layers.GlobalAveragePooling2D()(y))
    net = keras.Model(start, y)
    net.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    return lambda: net.train_on_batch(x, t)


def torch_data_parallel(model, x, t):
    """torch's own DataParallel code; on a host without GPUs its replicas are threads on the CPU."""
    import torch

    import torch_ref

    def once():
        with torch_ref.pretend(N):
            step()

    with torch_ref.pretend(N) as devices:
        net = torch.nn.DataParallel(
            torch_model("mlp" if x.ndim == 2 else "resnet18").to(devices.device), list(range(N))
        )
    step = torch_step(net, x, t, x.ndim == 4)
    return once


class TorchDDP:
    """N processes over gloo."""

    def __init__(self, name):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        shared = {"WORLD_SIZE": str(N), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        arguments = [
            f"--devices={N}",
            f"--batch={options.batch}",
            f"--size={options.size}",
            f"--torch-rank={name}",
        ]
        self.ranks = [
            subprocess.Popen(
                [sys.executable, __file__, *arguments],
                env=os.environ | shared | {"RANK": str(r)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for r in range(N)
        ]

    def __call__(self, n):
        for rank in self.ranks:
            rank.stdin.write(f"{n}\n")
            rank.stdin.flush()
        return max(float(rank.stdout.readline()) for rank in self.ranks)

    def end(self):
        for rank in self.ranks:
            rank.stdin.close()
            rank.wait()


def rounds_of(once):
    def run(n):
        start = time.perf_counter()
        for _ in range(n):
            loss = once()
        jax.block_until_ready(loss)
        return (time.perf_counter() - start) / n

    return run


SIDES = {
    "by hand, jit(shard_map)": by_hand,
    "jaxpar.train_step, DataParallel": ours(jaxpar.DataParallel),
    "jaxpar.train_step, DistributedDataParallel": ours(jaxpar.DistributedDataParallel),
    "jit with NamedSharding": named_sharding,
    "nnx.jit": nnx_jit,
    "pmap as in Flax's imagenet": flax_pmap,
    "Keras 3 DataParallel": keras_side,
    "torch DataParallel": torch_data_parallel,
}


def measure(name):
    x, t = batch_of(name)
    model = {"mlp": MLP, "resnet18": ResNet18}[name]
    n = {"mlp": 50, "resnet18": 2}[name]
    runs = {}
    for side, make in SIDES.items():
        try:
            runs[side] = rounds_of(make(model(nnx.Rngs(0)), x, t))
        except ImportError as error:
            print(f"without {side}: {error}", file=sys.stderr)
            continue
        runs[side](2)
    ddp = TorchDDP(name)
    runs[f"torch DDP, {N} processes over gloo"] = ddp
    ddp(2)
    times = [{side: run(n) for side, run in runs.items()} for _ in range(options.rounds)]
    ddp.end()
    return {side: statistics.median(row[side] for row in times) for side in runs}


def main():
    report = {name: measure(name) for name in options.model or ["mlp", "resnet18"]}
    if options.json:
        print(json.dumps(report, indent=1))
        return
    print(f"{N} x {jaxpar.devices()[0].device_kind}, jax {jax.__version__}, {os.cpu_count()} cores")
    for name, sides in report.items():
        print(f"\n{name}")
        hand = sides["by hand, jit(shard_map)"]
        for side, seconds in sides.items():
            print(f"  {side:44} {seconds * 1e3:10.2f} ms   {seconds / hand:6.3f} x by hand")


main()
