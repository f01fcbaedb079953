"""What is a training step on 8 and on 1,024 H100s beside the same step by hand?

    python benchmarks/gpu_programs.py [--only mlp|resnet50|gpt] [--devices 8 1024] [--keep FILE]

Nothing runs: XLA's compiler for GPUs (`jaxpar[gpu-compiler]`) makes each program, which is read. Of
each: its collectives and their bytes, how much of them lies behind computation as `jaxpar estimate` sees it,
the temporary bytes of a device, and what it takes to compile. By hand is jit(shard_map), a psum of the
gradients, the optimizer, donation.

BatchNorm: jaxpar sends the statistics of replica 0 in the all-reduce of the gradients, as torch broadcasts
its buffers. The step by hand does the same, by a psum to which all others add zeros; without it each device
would keep statistics of its own, and the messages would not be comparable.

Each program is compiled in a process of its own, because XLA keeps the kernels that it has assembled.
Compilation is counted in seconds of processors, all threads and children together, which other work on the
machine changes least. With `--keep` programs go into a file one by one, and those in it are not compiled
again.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from published import BF16, Shape, Transformer, gpt2, resnet, seeds

import jaxpar
from jaxpar._devices.topology import compiler_options
from jaxpar._tools.estimate.hlo import read
from jaxpar._tools.estimate.schedule import events, simulate

A_HOST, AXIS, BY_HAND = 8, "data", "by hand"
EVERYWHERE, CUT = PartitionSpec(), PartitionSpec(AXIS)

# ------------------------------------------------------------------------------------------- the models


class MLP(nnx.Module):
    def __init__(self, sizes=(784, 2048, 2048, 10)):
        pairs = itertools.pairwise(sizes)
        self.layers = nnx.List([nnx.Linear(a, b, rngs=seeds()) for a, b in pairs])

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


def labelled(net, x, labels):
    return optax.softmax_cross_entropy_with_integer_labels(net(x), labels).mean()


def mlp(b: int) -> tuple:
    return MLP, optax.adam(1e-3), labelled, Shape((b, 784), jnp.float32), Shape((b,), jnp.int32)


class GPT(Transformer):
    """The published one with logits as outputs: a DataParallel's loss has no other way to its embedding."""

    def __call__(self, tokens):
        return self.words.attend(super().__call__(tokens)).astype(jnp.float32)


def gpt(b: int) -> tuple:
    _, tx, _, *batch = gpt2(b)
    sizes = {"words": 50304, "places": 1024, "width": 768, "depth": 12, "heads": 12, "dtype": BF16}
    return functools.partial(GPT, **sizes, before=True, fused=None, causal=True), tx, labelled, *batch


MODELS: dict[str, tuple[Callable[[int], tuple], int]] = {
    "mlp": (mlp, 64),
    "resnet50": (functools.partial(resnet, dtype=BF16), 32),
    "gpt": (gpt, 8),
}
"""Each with the rows of a device. The GPT's attention is `jax.nn.dot_product_attention`'s default."""

# -------------------------------------------------------------------------------------------- the steps

WRAPPERS = {"DataParallel": jaxpar.DataParallel, "DistributedDataParallel": jaxpar.DistributedDataParallel}


def ours(
    model: str, wrapper: str, gpus: jaxpar.Topology, rows: int, on_nonfinite: str
) -> jax.stages.Compiled:
    """What `train_step` runs."""
    make, tx, loss_fn, *batch = MODELS[model][0](rows)
    net = WRAPPERS[wrapper](nnx.eval_shape(make), gpus)
    optimizer = nnx.eval_shape(lambda net: nnx.Optimizer(net, tx, wrt=nnx.Param), net)
    return jaxpar.train_step(net, optimizer, loss_fn, on_nonfinite=on_nonfinite).lower(*batch).compile()


def by_hand(model: str, gpus: jaxpar.Topology, rows: int) -> jax.stages.Compiled:
    """The same with JAX alone."""
    make, tx, loss_fn, *batch = MODELS[model][0](rows)
    definition, parameters, rest = nnx.split(nnx.eval_shape(make), nnx.Param, ...)

    def loss_of(parameters, rest, *batch):
        net = nnx.merge(definition, parameters, rest, copy=True)
        loss = loss_fn(net, *batch)
        return loss, nnx.split(net, nnx.BatchStat, ...)[1]

    def step(parameters, moments, rest, *batch):
        (loss, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters, rest, *batch)
        first = jax.lax.axis_index(AXIS) == 0
        statistics = jax.tree.map(lambda x: jnp.where(first, x, 0), statistics)
        loss, gradients = jax.tree.map(lambda x: x / len(gpus), (loss, gradients))
        loss, gradients, statistics = jax.lax.psum((loss, gradients, statistics), AXIS)
        updates, moments = tx.update(gradients, moments, parameters)
        return loss, optax.apply_updates(parameters, updates), moments, nnx.merge_state(rest, statistics)

    mesh = Mesh(np.array(gpus), (AXIS,), axis_types=(AxisType.Auto,))
    specs = (EVERYWHERE,) * 3 + (CUT,) * len(batch)
    mapped = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=EVERYWHERE, check_vma=False)
    run = jax.jit(mapped, donate_argnums=(0, 1, 2), compiler_options=dict(compiler_options(gpus)))

    def on(spec: PartitionSpec, tree: Any) -> Any:
        return jax.tree.map(lambda x: Shape(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)), tree)

    held = parameters, jax.eval_shape(tx.init, parameters), rest
    return run.lower(*on(EVERYWHERE, held), *on(CUT, batch)).compile()


# ----------------------------------------------------------------------------------------- one program


@dataclasses.dataclass(frozen=True)
class Case:
    """A program: `missing` is how many rows the last device has too few."""

    model: str
    devices: int
    step: str
    on_nonfinite: str = "ignore"
    missing: int = 0

    @property
    def name(self) -> str:
        rows = f", {self.missing} row fewer" if self.missing else ""
        return self.step + rows + (', "raise"' if self.on_nonfinite == "raise" else "")


@dataclasses.dataclass(frozen=True)
class Program:
    """What was read of it, of one device: `sent` and `temporary` in bytes, `overlap` from 0 to 1."""

    count: int
    sent: int
    overlap: float
    temporary: int
    seconds: float


def compiled(case: Case) -> Program:
    """Compiles and reads it, in this process."""
    gpus = jaxpar.topology("h100", hosts=case.devices // A_HOST, devices=A_HOST)
    rows = MODELS[case.model][1] * case.devices - case.missing
    before = processors()
    if case.step == BY_HAND:
        found = by_hand(case.model, gpus, rows)
    else:
        found = ours(case.model, case.step, gpus, rows, case.on_nonfinite)
    took = processors() - before
    h100 = jaxpar.Hardware.of("h100")
    lanes = simulate(events(read(found.as_text()), h100.seconds), h100, case.devices, A_HOST)
    sent = int(sum(slot.bytes for slot in lanes.exchanges))
    temporary = int(found.memory_analysis().temp_size_in_bytes)
    return Program(len(lanes.exchanges), sent, lanes.overlap, temporary, took)


def processors() -> float:
    """Seconds that this process and its children have computed."""
    return sum(os.times()[:4])


def apart(case: Case) -> Program:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(dataclasses.asdict(case))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"gpu_programs.py: {case} could not be compiled; see above.")
    return Program(**json.loads(done.stdout.splitlines()[-1]))


# -------------------------------------------------------------------------------------------- the table


def cases(model: str, devices: int) -> list[Case]:
    """The step by hand first, then what is compared with it."""
    at = functools.partial(Case, model, devices)
    even = [at(wrapper) for wrapper in WRAPPERS]
    uneven = [at(wrapper, missing=1) for wrapper in WRAPPERS]
    return [at(BY_HAND), *even, *uneven, *(at(wrapper, "raise") for wrapper in WRAPPERS)]


MEMORY, COMPILATION, UNEVEN, SAME = 1.01, 1.1, 1.10, 0.01
"""The bars: of temporary bytes over by hand's, of seconds for more devices over those for fewer, of an uneven
batch's temporary bytes over an even one's, and how far two overlaps may be apart."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A program beside the one that it is measured by, and beside the same for the fewest devices."""

    case: Case
    found: Program
    against: Program
    fewest: Program

    @property
    def memory(self) -> float:
        return self.found.temporary / self.against.temporary

    @property
    def compilation(self) -> float:
        return self.found.seconds / self.fewest.seconds

    @property
    def missed(self) -> list[str]:
        """The bars that it does not hold. Those of the exchange are for rows that divide evenly."""
        found, against = self.found, self.against
        even = {
            "collectives": found.count <= against.count,
            "bytes": found.sent <= against.sent,
            "overlap": found.overlap >= against.overlap - SAME,
        }
        held = {
            "memory": self.memory <= (UNEVEN if self.case.missing else MEMORY),
            "compilation": self.compilation <= COMPILATION,
        } | ({} if self.case.missing else even)
        return [bar for bar, holds in held.items() if not holds]

    def __str__(self) -> str:
        case, found = self.case, self.found
        figures = f"{found.count} | {found.sent:,} | {found.overlap:.1%} | {found.temporary / 1e6:,.1f}"
        ratios = f"{self.memory:.3f} | {found.seconds:.1f} | {self.compilation:.2f}"
        missed = ", ".join(self.missed) or "-"
        return f"| {case.model} | {case.devices:,} | {case.name} | {figures} | {ratios} | {missed} |"


HEAD = """\
| model | H100s | step | collectives | bytes | overlap | temporary MB | ratio | compile s | ratio | misses |
|---|---|---|---|---|---|---|---|---|---|---|"""


def row(case: Case, programs: dict[Case, Program]) -> Row:
    """An uneven batch is measured by the even one, everything else by the step by hand."""
    even = dataclasses.replace(case, missing=0)
    against = even if case.missing else Case(case.model, case.devices, BY_HAND)
    fewest = min((c for c in programs if c == dataclasses.replace(case, devices=c.devices)), key=_devices)
    return Row(case, programs[case], programs[against], programs[fewest])


def _devices(case: Case) -> int:
    return case.devices


def kept(path: Path | None) -> dict[Case, Program]:
    """The programs in a file, a line for each."""
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {Case(**line["case"]): Program(**line["program"]) for line in lines}


def keep(path: Path, case: Case, program: Program) -> None:
    line = {"case": dataclasses.asdict(case), "program": dataclasses.asdict(program)}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=MODELS)
    parser.add_argument("--devices", type=int, nargs="+", default=[8, 1024], help="multiples of 8")
    parser.add_argument("--keep", type=Path, help="a file of programs, which grows")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(dataclasses.asdict(compiled(Case(**json.loads(options.one))))))
        return
    if any(n < 1 or n % A_HOST for n in options.devices):
        parser.error(f"--devices {options.devices}: a host has {A_HOST}; give multiples of {A_HOST}.")
    programs = kept(options.keep)
    print(f"jax {jax.__version__}\n\n{HEAD}", flush=True)
    rows = []
    for model in [options.only] if options.only else MODELS:
        for case in (c for devices in options.devices for c in cases(model, devices)):
            if case not in programs:
                programs[case] = apart(case)
                if options.keep:
                    keep(options.keep, case, programs[case])
            rows.append(row(case, programs))
            print(rows[-1], flush=True)
    steps = [r for r in rows if r.case.step != BY_HAND]
    print(f"\n{sum(not r.missed for r in steps)} of the {len(steps)} steps of jaxpar miss no bar.")


if __name__ == "__main__":
    main()
