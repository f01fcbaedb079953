"""jaxpar's side: the same trainings in processes of one device, of several, or in one process alone."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxpar
from jaxpar import comm_hooks

powersgd = comm_hooks.powersgd
# torch draws first for the last layer, whose gradient is ready first. NNX sorts: a.bias, a.kernel, b.kernel.
LAST_FIRST = (2, 1)
HOOKS = {
    "allreduce": lambda: comm_hooks.allreduce,
    "fp16": lambda: comm_hooks.fp16_compress,
    "bf16": lambda: comm_hooks.bf16_compress,
    "fp16 wrapper": lambda: comm_hooks.fp16_compress_wrapper(comm_hooks.allreduce),
    "noop": lambda: comm_hooks.noop,
    "powersgd": lambda: powersgd(1, 2, 1, order=LAST_FIRST),
    "powersgd, rank 2": lambda: powersgd(2, 2, 1, random_seed=7, order=LAST_FIRST),
    "powersgd, rank 3": lambda: powersgd(3, 2, 1, orthogonalization_epsilon=1e-8, order=LAST_FIRST),
    "powersgd, cold": lambda: powersgd(1, 2, 1, warm_start=False, order=LAST_FIRST),
    "powersgd, plain": lambda: powersgd(1, 2, use_error_feedback=False, order=(1, 0)),
}
LEAVES = {"weight": "kernel", "running_mean": "mean", "running_var": "var"}


class Net(nnx.Module):
    def __init__(self, model: str, weights: cases.Arrays, pair: Any = None):
        self.model = model
        for name in dict.fromkeys(name.split(".")[0] for name in weights):
            setattr(self, name, _layer({n.split(".")[1]: w for n, w in weights.items() if n[0] == name}))
        if model == "synchronised":
            jaxpar.convert_sync_batchnorm(self, pair)

    def __call__(self, x, flag):
        if self.model in (*cases.IMAGES, "kernel"):
            y = self.a(jnp.moveaxis(x, 1, -1))
            y = jnp.tanh(self.n(y) if self.model in cases.IMAGES else y)
            return self.b(y.mean((1, 2)))
        y = self.b(jnp.tanh(self.a(x)))
        return y + flag * self.c(x) if self.model == "unused by some" else y


def _layer(weights: cases.Arrays) -> nnx.Module:
    w, rngs, double = weights["weight"], nnx.Rngs(0), {"param_dtype": jnp.float64}
    bias = "bias" in weights
    layer: nnx.Module
    if "running_var" in weights:
        layer = jaxpar.nn.BatchNorm(len(w), **double)
    elif w.ndim == 4:
        layer = nnx.Conv(w.shape[1], w.shape[0], (3, 3), padding=1, use_bias=bias, rngs=rngs, **double)
    else:
        layer = nnx.Linear(w.shape[1], w.shape[0], use_bias=bias, rngs=rngs, **double)
    for name, value in weights.items():
        leaf = "scale" if name == "weight" and "running_var" in weights else LEAVES.get(name, name)
        setattr(layer, leaf, getattr(layer, leaf).replace(jnp.asarray(flax_form(value))))
    return layer


def flax_form(x: np.ndarray) -> np.ndarray:
    return x.transpose((2, 3, 1, 0) if x.ndim == 4 else None)


def torch_form(state: nnx.State, prefix: str) -> cases.Arrays:
    """`prefix.name`, names and layouts torch's."""
    names = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}
    found = {}
    for path, value in nnx.to_flat_state(state):
        layer, leaf = path[-2:]
        x = np.asarray(value[...])
        x = x.transpose((3, 2, 0, 1) if x.ndim == 4 else None)
        found[f"{prefix}.{layer}.{names.get(leaf, leaf)}"] = x
    return found


def buffers(net) -> nnx.State:
    return nnx.state(net, lambda path, value: path[-1] in ("mean", "var"))


def loss_fn(net, x, y, flag):
    out = net(x, flag)
    return ((out - y) ** 2).mean(), out


@functools.cache
def pair_of(rank: int) -> Any:
    """The group of ranks 0 and 1 or of 2 and 3; all ranks make both."""
    dist = jaxpar.distributed
    return [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]


def train(case: cases.Case, first: int, K: int) -> cases.Arrays:
    """What torch's ranks `first` to `first + K - 1` do, on the K devices of this process."""
    seen: cases.Arrays = {}
    pair = pair_of(first) if case.pairs or case.model == "synchronised" else None
    net = jaxpar.DistributedDataParallel(
        Net(case.model, cases.weights(case.model, first), pair),
        device_ids=range(K),
        process_group=pair if case.pairs else None,
        forward_sync_buffers=case.sync,
        comm_hook=HOOKS[case.hook]() if case.hook else None,
    )
    optimizer = nnx.Optimizer(net, optax.sgd(cases.RATE, cases.MOMENTUM), wrt=nnx.Param)
    step = net.value_and_grad(loss_fn, has_aux=True)
    with net.join(bool(case.join)) if case.join is not None else contextlib.nullcontext():
        for t in range(case.steps_of(first)):
            for part in range(case.accumulate):
                parts = [cases.batch(case, first + i, t, part) for i in range(K)]
                with net.no_sync() if part + 1 < case.accumulate else contextlib.nullcontext():
                    (loss, out), gradients = step(*map(np.concatenate, zip(*parts, strict=True)))
                assert (gradients is None) == (part + 1 < case.accumulate)
                seen[f"{t}.{part}.loss"], seen[f"{t}.{part}.out"] = np.asarray(loss), np.asarray(out)
                seen |= torch_form(buffers(net), f"{t}.{part}.buffer")
            seen |= torch_form(gradients, f"{t}.gradient")
            optimizer.update(net, gradients)
            seen |= torch_form(nnx.state(net, nnx.Param), f"{t}.weight")
        for part in range(case.left_of(first)):
            with net.no_sync():
                step(*cases.batch(case, first, case.steps, part))
    seen |= torch_form(nnx.state(net, nnx.Param), "end.weight")
    if case.evaluates:
        net.eval()
        parts = [cases.batch(case, first + i, 99) for i in range(K)]
        x, _, flag = map(np.concatenate, zip(*parts, strict=True))
        seen["end.out"] = np.asarray(net(x, flag))
    return seen | torch_form(buffers(net), "end.buffer")


def trained(names: Iterable[str], rank: int, K: int) -> cases.Arrays:
    return {f"{n}/{k}": v for n in names for k, v in train(cases.CASES[n], rank * K, K).items()}


def main(folder: str, names: Iterable[str], K: int = 1) -> None:
    jax.config.update("jax_disable_most_optimizations", True)  # compiles in a third of the time
    jaxpar.distributed.init_process_group()
    rank, P = jaxpar.distributed.get_rank(), jaxpar.distributed.get_world_size()
    np.savez(f"{folder}/ours{P}x{K}.{rank}.npz", **trained(names, rank, K))
    jaxpar.distributed.destroy_process_group()
