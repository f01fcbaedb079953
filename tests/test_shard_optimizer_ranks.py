"""shard_optimizer=True in real processes over gloo, beside torch's DDP with ZeroRedundancyOptimizer."""

from __future__ import annotations

import numpy as np
import pytest
from comparing import assert_equal_numbers
from processes import outputs, ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DATA = """
import numpy as np
draw = np.random.RandomState(0).randn
WEIGHTS = {"a": draw(5, 13), "b": draw(13), "c": draw(13, 3), "d": draw(3)}
X, Y = draw(5, 24, 5), draw(5, 24, 3)
"""

THEIRS = """
import torch, torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, w in WEIGHTS.items():
            setattr(self, name, torch.nn.Parameter(torch.tensor(w)))

    def forward(self, x):
        return torch.tanh(x @ self.a + self.b) @ self.c + self.d

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
net = torch.nn.parallel.DistributedDataParallel(Net())
optimizer = ZeroRedundancyOptimizer(net.parameters(), getattr(torch.optim, KIND), **OPTIONS)
for x, y in zip(X, Y):
    x, y = (torch.tensor(np.split(a, size)[rank]) for a in (x, y))
    optimizer.zero_grad()
    ((net(x) - y) ** 2).mean().backward()
    if CLIP:
        torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
    optimizer.step()
np.savez(f"{FOLDER}/theirs.{rank}.npz", **{n: p.detach().numpy() for n, p in net.module.named_parameters()})
dist.destroy_process_group()
"""

OURS = """
import jax, jax.numpy as jnp, optax, jaxpar
from flax import nnx
from jaxpar import optim
import jaxpar.distributed as dist

class Net(nnx.Module):
    def __init__(self):
        for name, w in WEIGHTS.items():
            setattr(self, name, nnx.Param(jnp.array(w)))

    def __call__(self, x):
        return jnp.tanh(x @ self.a[...] + self.b[...]) @ self.c[...] + self.d[...]

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
net = jaxpar.DistributedDataParallel(Net(), shard_optimizer=SHARD)
stages = [optim.clip_grad_norm(CLIP)] if CLIP else []
tx = optax.chain(*stages, getattr(optim, KIND.lower())(**OPTIONS))
optimizer = optim.Optimizer(net, tx)
step = jaxpar.train_step(net, optimizer, lambda net, x, y: ((net(x) - y) ** 2).mean())
checkpointer = jaxpar.Checkpointer(f"{FOLDER}/run")
items = {"net": net, "optimizer": optimizer, "step": step}
first = 0
if RESUME:
    first = checkpointer.restore(3, **items).next
for i in range(first, len(X)):
    step(*(np.split(a[i], size)[rank] for a in (X, Y)))
    if i == 3 and not RESUME:
        checkpointer.save(i, **items)
with net.join(enable=JOIN):
    for i in range(2 + rank if JOIN else 0):
        step(*(np.split(a[i], size)[rank] for a in (X, Y)))
checkpointer.close()
jaxpar.check_replicas(net)
jaxpar.check_replicas(optimizer)
device = jax.local_devices()[0]
held = sum(s.data.nbytes for x in jax.tree.leaves(nnx.state(optimizer))
           for s in x.addressable_shards if s.device == device and x.size > 1)
print("held", held)
whole = jaxpar.unwrapped_state(optimizer, net)
assert {x.shape for x in jax.tree.leaves(whole)} >= {(5, 13), (13,), (13, 3), (3,)}
np.savez(f"{FOLDER}/ours.{rank}.npz", **{n: np.asarray(getattr(net.module, n)[...]) for n in WEIGHTS})
dist.destroy_process_group()
"""

CASES = {
    "sgd": ("SGD", {"lr": 0.1, "momentum": 0.9}, None),
    "adamw": ("AdamW", {"lr": 0.01}, 0.3),
}


def run(source, n, folder, name, **settings):
    kind, options, clip = CASES[name]
    settings |= {"KIND": kind, "OPTIONS": options, "CLIP": clip, "FOLDER": str(folder)}
    devices = settings.pop("devices", 1)
    settings.setdefault("JOIN", False)
    head = "\n".join(f"{key} = {value!r}" for key, value in settings.items())
    return outputs(ranks(n, f"{DATA}\n{head}\n{source}", devices=devices, timeout=280))


def compare(folder, n, tensors):
    for r in range(n):
        ours = np.load(folder / f"ours.{r}.npz")
        for name, want in tensors.items():
            assert_equal_numbers(f"rank {r}: {name}", ours[name], want)


@pytest.mark.long
def test_ranks_with_different_numbers_of_batches(tmp_path):
    weights = []
    for shard in (False, True):
        folder = tmp_path / str(shard)
        folder.mkdir()
        run(OURS, 2, folder, "adamw", SHARD=shard, RESUME=False, JOIN=True)
        weights.append(dict(np.load(folder / "ours.0.npz")))
    compare(folder, 2, weights[0])


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", CASES)
def test_torchs_numbers_and_checkpoints_for_any_world(tmp_path, name):
    pytest.importorskip("torch")
    run(THEIRS, 2, tmp_path, name)
    theirs = dict(np.load(tmp_path / "theirs.0.npz"))
    printed = run(OURS, 2, tmp_path, name, devices=2, SHARD=True, RESUME=False)
    compare(tmp_path, 2, theirs)
    moments = {"sgd": 1, "adamw": 2}[name]
    # Of 65, 13, 39 and 3 numbers a device of four has 17, 4, 10 and 1.
    assert [line for out in printed for line in out.split("\n") if line] == [f"held {8 * moments * 32}"] * 2
    for n, devices, shard in ((2, 1, True), (1, 3, True), (2, 1, False)):
        run(OURS, n, tmp_path, name, devices=devices, SHARD=shard, RESUME=True)
        compare(tmp_path, n, theirs)
