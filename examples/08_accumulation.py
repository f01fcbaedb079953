"""Gradient accumulation: k small batches that do what one large one does.

What is new: DistributedDataParallel, in which every replica has a loss of its own and the gradients are
averaged; `accumulate=k`, with one exchange of gradients and one update after k batches; and the same by
hand with `no_sync`. First it shows that all of these make the same weights, then it trains.

The data are scikit-learn's digits: 1797 images of 8 x 8 pixels (E. Alpaydin and C. Kaynak, UCI
repository, CC BY 4.0; shipped with scikit-learn).

    python examples/08_accumulation.py                     # on GPUs, or on virtual devices
    python examples/08_accumulation.py --torch --float64   # beside torch, replica by replica
"""

import argparse
import itertools
import sys
import tempfile

import jax
import numpy as np
from flax import nnx
from sklearn.datasets import load_digits

import jaxpar
from jaxpar.data import DataLoader, TensorDataset, prefetch
from jaxpar.nn.functional import cross_entropy

parser = argparse.ArgumentParser(description="k small batches for one large one.")
parser.add_argument("--devices", type=int, default=4, help="virtual devices, where there is no GPU")
parser.add_argument("--steps", type=int, default=80, help="updates")
parser.add_argument("--accumulate", type=int, default=4, help="batches for one update")
parser.add_argument("--batch-size", type=int, default=32, help="rows of a small batch")
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--run", help="folder of checkpoint and log, to go on from; a fresh one if left out")
parser.add_argument("--torch", action="store_true", help="train torch's twin for the first 50 updates, too")
parser.add_argument("--float64", action="store_true")
options = parser.parse_args()

jaxpar.virtual_devices(options.devices)  # before anything makes an array; GPUs are used where there are any
jax.config.update("jax_enable_x64", options.float64)
dtype = np.float64 if options.float64 else np.float32
run = options.run or tempfile.mkdtemp()
k = options.accumulate

# ------------------------------------------------------------------------------------ data and model
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(dtype)
train, test = slice(0, 1437), slice(1437, None)
rows = TensorDataset(images[train], labels[train])


def make():
    """The same net whenever it is called, and its optimizer."""
    rngs = nnx.Rngs(0)
    first, second = nnx.Linear(64, options.width, rngs=rngs), nnx.Linear(options.width, 10, rngs=rngs)
    module = jaxpar.to(nnx.Sequential(first, nnx.relu, second), dtype=dtype)
    net = jaxpar.DistributedDataParallel(module)
    return net, nnx.Optimizer(net, jaxpar.optim.sgd(lr=0.2, momentum=0.9), wrt=nnx.Param)


def loss_fn(net, x, y):  # of one replica's rows
    return cross_entropy(net(x), y)


# ------------------------------------------------------------------------------- k small ones, one large
size = options.batch_size
large = rows[: k * size]
small = [rows[i * size : (i + 1) * size] for i in range(k)]

net, optimizer = make()
jaxpar.train_step(net, optimizer, loss_fn)(*large)

other, its = make()
accumulating = jaxpar.train_step(other, its, loss_fn, accumulate=k)
for x, y in small:
    accumulating(x, y)  # weights move at the last one

by_hand, optimizer_by_hand = make()
with by_hand.no_sync():
    for x, y in small[:-1]:
        by_hand.value_and_grad(loss_fn)(x, y)  # each replica keeps its gradients
_, gradients = by_hand.value_and_grad(loss_fn)(*small[-1])  # the sums, averaged over the replicas
optimizer_by_hand.update(by_hand, jax.tree.map(lambda g: g / k, gradients))

for name, one in (("accumulate", other), ("no_sync", by_hand)):
    pairs = zip(jax.tree.leaves(nnx.state(one)), jax.tree.leaves(nnx.state(net)), strict=True)
    apart = max(float(abs(a - b).max()) for a, b in pairs)
    print(f"weights after {k} small batches ({name}) and a large one: largest difference {apart:.1e}")


# ------------------------------------------------------------------------------------ the same in torch
def torch_twin(net):
    """A function that trains torch's net, which begins with the same weights, on k batches.

    What n processes of torch's DistributedDataParallel compute, one after the other.
    """
    import torch
    from torch import nn

    n = net.replicas
    torch.set_default_dtype(torch.float64 if options.float64 else torch.float32)
    theirs = nn.Sequential(nn.Linear(64, options.width), nn.ReLU(), nn.Linear(options.width, 10))
    theirs.load_state_dict(jaxpar.parity.to_torch(net, like=theirs))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.2, momentum=0.9)

    def update(batches):
        optimizer.zero_grad()
        total = 0.0
        for x, y in batches:
            x, y = torch.tensor(np.asarray(x)).chunk(n), torch.tensor(np.asarray(y)).long().chunk(n)
            for a, b in zip(x, y, strict=True):  # replica by replica
                loss = nn.functional.cross_entropy(theirs(a), b) / n / k
                loss.backward()
                total += loss.item()
        optimizer.step()
        return total

    return update


# ----------------------------------------------------------------------------------------- training
net, optimizer = make()
step = jaxpar.train_step(net, optimizer, loss_fn, accumulate=k)
loader = prefetch(DataLoader(rows, batch_size=size, shuffle=True, seed=0))


def updates():
    endless = itertools.chain.from_iterable(itertools.repeat(loader))
    while True:
        yield list(itertools.islice(endless, k))


state = {"net": net, "optimizer": optimizer, "loader": loader}
with loader, jaxpar.Checkpointer(run, save_every=50) as checkpointer, jaxpar.MetricsLog(run) as log:
    done, stopped = 0, False  # in updates, because between two batches there are gradients to be kept
    if checkpointer.latest_step() is not None:
        done = checkpointer.restore(**state).step
        log.resume_from(done + 1)
    if done and options.torch:
        parser.error("--torch begins at the first step: give another folder to --run")
    twin = torch_twin(net) if options.torch else None
    bar = jaxpar.progress(range(done + 1, options.steps + 1), description="training")
    try:
        for done, batches in zip(bar, updates(), strict=False):
            loss = sum(step(x, y) for x, y in batches) / k
            bar.show(loss=loss)
            log.log(done, loss=loss)
            if twin and done <= 50:
                log.log(done, torch=twin(batches))
            checkpointer.save(done, **state)
    except KeyboardInterrupt:
        stopped = True
    checkpointer.wait()
    if checkpointer.latest_step() != done:
        checkpointer.save(done, force=True, **state)
if stopped:
    print(f"stopped after step {done}; to go on: --run {run}")
    sys.exit(130)

# ------------------------------------------------------------------------------------------- results
if options.torch:
    curves = jaxpar.MetricsLog.read(run)
    apart = np.nanmax(np.abs(curves["loss"] - curves["torch"]))
    print(f"losses of jaxpar and torch over {min(50, done)} steps: largest difference {apart:.1e}")
accuracy = (np.asarray(net(images[test])).argmax(-1) == labels[test]).mean()
print(f"{net.replicas} replicas, {done} updates of {k} batches; accuracy {accuracy:.1%}")
