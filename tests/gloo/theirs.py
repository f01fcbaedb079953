"""torch's side: W processes with gloo and DistributedDataParallel, every one of which writes what it saw.

One interpreter imports torch and forks the ranks, because importing takes longer than all of the training.
"""

import contextlib
import datetime
import functools
import multiprocessing
import sys
import warnings

import cases
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self, model: str, weights: cases.Arrays, pair=None):
        super().__init__()
        self.model = model
        for layer in dict.fromkeys(name.split(".")[0] for name in weights):
            setattr(self, layer, _layer({n.split(".")[1]: w for n, w in weights.items() if n[0] == layer}))
        if model == "synchronised":
            self.n = Synchronised(self.n, pair)

    def forward(self, x, flag):
        if self.model in (*cases.IMAGES, "kernel"):
            y = self.a(x)
            y = torch.tanh(self.n(y) if self.model in cases.IMAGES else y)
            return self.b(y.mean((2, 3)))
        y = self.b(torch.tanh(self.a(x)))
        return y + self.c(x) if flag.any() else y


class Synchronised(nn.BatchNorm2d):
    """torch's SyncBatchNorm, which it has for GPUs only: BatchNorm over the rows of a group's ranks."""

    def __init__(self, layer: nn.BatchNorm2d, group):
        super().__init__(layer.num_features)
        self.double().load_state_dict(layer.state_dict())
        self.group = group

    def forward(self, x):
        if not self.training:
            return super().forward(x)

        def total(y):
            return torch.distributed.nn.functional.all_reduce(y, group=self.group)

        n = total(torch.tensor(x.numel() / x.shape[1], dtype=x.dtype))
        mean = total(x.sum((0, 2, 3))) / n
        far = x - mean[:, None, None]
        var = total((far**2).sum((0, 2, 3))) / n
        with torch.no_grad():
            for old, now in ((self.running_mean, mean), (self.running_var, var * n / (n - 1))):
                old.lerp_(now, self.momentum)
        y = far / (var[:, None, None] + self.eps).sqrt()
        return y * self.weight[:, None, None] + self.bias[:, None, None]


def _layer(weights: cases.Arrays) -> nn.Module:
    w = weights["weight"]
    layer: nn.Module
    if "running_var" in weights:
        layer = nn.BatchNorm2d(len(w))
    elif w.ndim == 4:
        layer = nn.Conv2d(w.shape[1], w.shape[0], 3, padding=1, bias="bias" in weights)
    else:
        layer = nn.Linear(w.shape[1], w.shape[0], bias="bias" in weights)
    layer.double().load_state_dict({k: torch.tensor(v) for k, v in weights.items()}, strict=False)
    return layer


# No `from __future__ import annotations` here: torch reads the annotations of hooks.
def bf16(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """torch's own bfloat16 hook under another name: by its name it is refused without NCCL."""
    return default_hooks._compress_hook(torch.bfloat16, state, bucket)


def _powersgd(rank, **options):
    state = powerSGD_hook.PowerSGDState(None, rank, 2, **options)
    return state, powerSGD_hook.powerSGD_hook


HOOKS = {
    "allreduce": lambda: (None, default_hooks.allreduce_hook),
    "fp16": lambda: (None, default_hooks.fp16_compress_hook),
    "bf16": lambda: (None, bf16),
    "fp16 wrapper": lambda: (None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
    "noop": lambda: (None, debugging_hooks.noop_hook),
    "powersgd": lambda: _powersgd(1, min_compression_rate=1),
    "powersgd, rank 2": lambda: _powersgd(2, min_compression_rate=1, random_seed=7),
    "powersgd, rank 3": lambda: _powersgd(3, min_compression_rate=1, orthogonalization_epsilon=1e-8),
    "powersgd, cold": lambda: _powersgd(1, min_compression_rate=1, warm_start=False),
    "powersgd, plain": lambda: _powersgd(1, use_error_feedback=False),
}


@functools.cache
def pair_of(rank: int):
    """The group of ranks 0 and 1 or of 2 and 3; all ranks make both."""
    return [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]


def train(case: cases.Case, rank: int) -> cases.Arrays:
    """Everything of one training, by `step.what.name`."""
    seen: cases.Arrays = {}
    pair = pair_of(rank) if case.pairs or case.model == "synchronised" else None
    net = DistributedDataParallel(
        Net(case.model, cases.weights(case.model, rank), pair),
        process_group=pair if case.pairs else None,
        forward_sync_buffers=case.sync,
        find_unused_parameters=case.model.startswith("unused"),
    )
    if case.hook:
        state, hook = HOOKS[case.hook]()
        if case.pairs:
            state.process_group = pair
        net.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(net.parameters(), cases.RATE, cases.MOMENTUM)
    joined = net.join(bool(case.join)) if case.join is not None else contextlib.nullcontext()
    with joined:
        for t in range(case.steps_of(rank)):
            net.zero_grad()
            for part in range(case.accumulate):
                x, y, flag = map(torch.tensor, cases.batch(case, rank, t, part))
                with net.no_sync() if part + 1 < case.accumulate else contextlib.nullcontext():
                    out = net(x, flag)
                    loss = ((out - y) ** 2).mean()
                    loss.backward()
                seen[f"{t}.{part}.loss"], seen[f"{t}.{part}.out"] = (
                    loss.detach().numpy(),
                    out.detach().numpy(),
                )
                seen |= {f"{t}.{part}.buffer.{k}": v for k, v in _buffers(net).items()}
            for name, p in net.module.named_parameters():
                if p.grad is not None:
                    seen[f"{t}.gradient.{name}"] = p.grad.numpy().copy()
            optimizer.step()
            for name, p in net.module.named_parameters():
                seen[f"{t}.weight.{name}"] = p.detach().numpy().copy()
        for part in range(case.left_of(rank)):
            with net.no_sync():
                x, y, flag = map(torch.tensor, cases.batch(case, rank, case.steps, part))
                ((net(x, flag) - y) ** 2).mean().backward()
    for name, p in net.module.named_parameters():
        seen[f"end.weight.{name}"] = p.detach().numpy().copy()
    if case.evaluates:
        # In evaluation and without gradients; the buffers of rank 0 arrive at its beginning.
        net.eval()
        x, _, flag = map(torch.tensor, cases.batch(case, rank, 99))
        with torch.no_grad():
            seen["end.out"] = net(x, flag).numpy()
    return seen | {f"end.buffer.{k}": v for k, v in _buffers(net).items()}


def _buffers(net) -> cases.Arrays:
    return {k: v.numpy().copy() for k, v in net.module.named_buffers() if k in cases.BUFFERS}


def forgets_unused(rank: int) -> np.ndarray:
    """docs/semantics.md row D13: without the flag the next forward raises."""
    net = DistributedDataParallel(Net("unused", cases.weights("unused", rank)))
    x, _, flag = map(torch.tensor, cases.batch(cases.Case("unused"), rank, 0))
    net(x, flag).sum().backward()
    try:
        net(x, flag)
    except RuntimeError as error:
        return np.array("find_unused_parameters=True" in str(error))
    return np.array(False)


def one_rank(rank: int, W: int, folder: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", f"file://{folder}/meet", world_size=W, rank=rank, timeout=datetime.timedelta(seconds=60)
    )
    seen = {f"{name}/{k}": v for name in names for k, v in train(cases.CASES[name], rank).items()}
    if "unused" in names:
        seen["forgets unused"] = forgets_unused(rank)
    np.savez(f"{folder}/theirs.{rank}.npz", **seen)
    dist.barrier()
    dist.destroy_process_group()


def main(folder: str, W: int, names: list[str]) -> None:
    fork = multiprocessing.get_context("fork")
    started = [fork.Process(target=one_rank, args=(r, W, folder, names)) for r in range(W)]
    for process in started:
        process.start()
    for process in started:
        process.join(90)
        if process.exitcode != 0:
            for other in started:
                other.kill()
            sys.exit(f"a rank of {W} ended with {process.exitcode}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
