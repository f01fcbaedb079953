"""What a step costs before it is warm, and how much memory it takes: train_step against a step by hand.

    python benchmarks/first_call.py [--devices 2] [--rounds 5] [--model many large resnet18 gpt] [--small]

`many` has 1,040 small arrays: tracing and Python are what its first call costs. `large` has 160 MB of
parameters: its peak memory shows what is donated. `resnet18` and `gpt` are models in NNX. Every side is a
process of its own, the sides take turns, and a ratio is the median of the rounds' ratios. JAX's cache of
compiled programs is off. By hand the parameters are a plain tree, and the program is `jit(shard_map)` or
`jit` over sharded arrays, donated.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCHMARKS.parent), str(BENCHMARKS / "train_step"), str(BENCHMARKS / "gpu")]

import jaxpar  # noqa: E402

SIDES = {"DataParallel": "jit by hand", "DistributedDataParallel": "shard_map by hand"}
"""The two wrappers, and the program by hand that does the same."""
MODELS = {"many": (520, 8), "large": (10, 2000), "resnet18": (18, 64), "gpt": (12, 64)}
"""Layers, and the width of each."""
SMALL = {"many": (20, 8), "large": (2, 400), "resnet18": (18, 64), "gpt": (2, 16)}
OPTIMIZERS = {
    "sgd": lambda optax: optax.sgd(0.01),
    "momentum": lambda optax: optax.sgd(0.01, momentum=0.9),
    "adam": lambda optax: optax.adam(1e-3),
}
WARM = {"many": 30, "large": 8, "resnet18": 4, "gpt": 8}  # steps that are timed after the first


def clock() -> list[float]:
    return [time.perf_counter(), time.process_time()]


def measure(side: str, model: str, layers: int, width: int, N: int, optimizer: str) -> dict[str, float]:
    """Run one side in this process; return seconds, of all cores in `cpu`, and the peak memory in MB."""
    jaxpar.virtual_devices(N)
    import jax
    import numpy as np
    import optax

    tx = OPTIMIZERS[optimizer](optax)
    random = np.random.RandomState(0)
    jax.block_until_ready(jax.device_put(random.randn(4)))  # JAX has started
    if model in MODULES:
        make = _modules(side, model, layers, width, tx, N)
    else:
        x, t = random.randn(2, 8 * N, width).astype(np.float32)
        make = (_by_hand if side in SIDES.values() else _jaxpar)(side, layers, width, tx, N, x, t)
    before = clock()
    step = make()
    made = clock()
    jax.block_until_ready(step())
    called = clock()
    jax.block_until_ready(step())  # compiles again where the first step's results have other types
    times = []
    for _ in range(WARM[model]):
        start = time.perf_counter()
        jax.block_until_ready(step())
        times.append(time.perf_counter() - start)
    return {
        "first call": called[0] - made[0],
        "first call, cpu": called[1] - made[1],
        "with setup": called[0] - before[0],
        "with setup, cpu": called[1] - before[1],
        "warm": statistics.median(times),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _by_hand(side, layers, width, tx, N, x, t):
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax.sharding import AxisType, Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jaxpar.devices()[:N]), ("d",), axis_types=(AxisType.Auto,))
    params = [_layer(width, i) for i in range(layers)]

    def loss_of(params, x, t):
        for kernel, bias in params:
            x = jnp.tanh(x @ kernel + bias)
        return ((x - t) ** 2).mean()

    def step(params, state, x, t):
        loss, gradients = jax.value_and_grad(loss_of)(params, x, t)
        if side == "shard_map by hand":
            loss, gradients = jax.lax.pmean((loss, gradients), "d")
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    if side == "shard_map by hand":
        specs = (P(), P(), P("d"), P("d"))
        step = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
    rows, everywhere = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())

    def make():
        nonlocal params
        trained = jax.device_put(params, everywhere)
        params = None  # the module of the other sides does not hold its first arrays either
        state = [trained, jax.device_put(tx.init(trained), everywhere)]
        program = jax.jit(step, donate_argnums=(0, 1))

        def once():
            *state[:], loss = program(*state, *jax.device_put((x, t), rows))
            return loss

        return once

    return make


def _layer(width, i):
    import jax.numpy as jnp
    import numpy as np

    kernel = np.random.RandomState(i).randn(width, width).astype(np.float32) / width**0.5
    return jnp.asarray(kernel), jnp.zeros(width)


def _jaxpar(side, layers, width, tx, N, x, t):
    import jax.numpy as jnp
    from flax import nnx

    class Layer(nnx.Module):
        def __init__(self, i):
            kernel, bias = _layer(width, i)
            self.kernel, self.bias = nnx.Param(kernel), nnx.Param(bias)

        def __call__(self, x):
            return jnp.tanh(x @ self.kernel + self.bias)

    class Net(nnx.Module):
        def __init__(self):
            self.layers = nnx.List([Layer(i) for i in range(layers)])

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    net = Net()

    def make():
        wrapped = getattr(jaxpar, side)(net, list(range(N)))
        optimizer = nnx.Optimizer(wrapped, tx, wrt=nnx.Param)
        step = jaxpar.train_step(wrapped, optimizer, lambda net, x, t: ((net(x) - t) ** 2).mean())
        return lambda: step(x, t)

    return make


MODULES = ("resnet18", "gpt")


def _modules(side, model, layers, width, tx, N):
    """A side of train_step/jax_sides.py with a model in NNX and 4 rows a device."""
    import jax.numpy as jnp
    import jax_sides
    import jax_steps
    import numpy as np
    from batches import batch_of
    from flax import nnx

    sides = {"jit by hand": jax_sides.named_sharding, "shard_map by hand": jax_sides.by_hand}
    if model == "resnet18":
        net, loss, batch = jax_sides.ResNet18(nnx.Rngs(0)), jax_sides.squared, batch_of(model, 4 * N, 32)
    else:
        words, length, options = 8 * width, width // 2, {"before": True, "fused": "xla", "causal": True}
        net = jax_steps.GPT(words, length, width, layers, 4, jnp.float32, **options)
        tokens = np.random.RandomState(0).randint(words, size=(4 * N, length + 1)).astype(np.int32)
        loss, batch = jax_steps.next_word, (tokens[:, :-1], tokens[:, 1:])

    def make():
        wrap = sides.get(side) or jax_sides.ours(getattr(jaxpar, side))
        return wrap(N, net, *batch, loss=loss, tx=tx)

    return make


def child(side: str, model: str, options: argparse.Namespace) -> dict[str, float]:
    flags = ["--side", side, "--model", model, "--devices", str(options.devices)]
    flags += ["--optimizer", options.optimizer] + ["--small"] * options.small
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    command = [sys.executable, __file__, *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="momentum")
    parser.add_argument("--small", action="store_true", help="20 layers, and 2 of 0.6 MB")
    parser.add_argument("--side", help="run this side here, and print one line of JSON")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    options = parser.parse_args()
    sizes = SMALL if options.small else MODELS
    if options.side:
        (model,) = options.model
        print(json.dumps(measure(options.side, model, *sizes[model], options.devices, options.optimizer)))
        return
    for model in options.model:
        order = [s for side in options.sides for s in (side, SIDES[side])]
        rounds = [{s: child(s, model, options) for s in order} for _ in range(options.rounds)]
        layers, width = sizes[model]
        print(f"{model}: {layers} layers, width {width}, {options.optimizer}, {options.devices} devices")
        for side in options.sides:
            print(f"  {side} / {SIDES[side]}")
            for what in rounds[0][side]:
                ours, theirs = ([row[s][what] for row in rounds] for s in (side, SIDES[side]))
                ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
                unit, scale = ("MB", 1) if what == "peak" else ("ms", 1e3)
                a, b = (scale * statistics.median(values) for values in (ours, theirs))
                print(f"    {what:16} {a:8.1f} {b:8.1f} {unit}  ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
