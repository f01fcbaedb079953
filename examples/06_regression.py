"""The usual regression script, where one line makes it parallel.

What is new: a whole training. `if device_count() > 1: net = DataParallel(net)` is all that is about
devices; the step is Flax's own idiom under `nnx.jit`. Batches that do not divide evenly, the last one
of every epoch among them, are split as torch splits them. Ctrl-C saves; `--run DIR` goes on.

The data are scikit-learn's diabetes measurements: 442 patients, 10 numbers each (Efron, Hastie,
Johnstone and Tibshirani 2004; shipped with scikit-learn, BSD-3-Clause).

    python examples/06_regression.py                      # on GPUs, or on virtual devices
    python examples/06_regression.py --torch --float64    # beside torch's own nn.DataParallel
"""

import argparse
import sys
import tempfile
from itertools import pairwise

import jax
import numpy as np
from flax import nnx
from sklearn.datasets import load_diabetes

import jaxpar

parser = argparse.ArgumentParser(description="Regression with DataParallel.")
parser.add_argument("--devices", type=int, default=4, help="virtual devices, where there is no GPU")
parser.add_argument("--steps", type=int, default=140)
parser.add_argument("--batch-size", type=int, default=60)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--run", help="folder of checkpoint and log, to go on from; a fresh one if left out")
parser.add_argument("--torch", action="store_true", help="train torch's twin on the first 50 batches, too")
parser.add_argument("--float64", action="store_true")
options = parser.parse_args()

jaxpar.virtual_devices(options.devices)  # before anything makes an array; GPUs are used where there are any
jax.config.update("jax_enable_x64", options.float64)
dtype = np.float64 if options.float64 else np.float32
run = options.run or tempfile.mkdtemp()

# --------------------------------------------------------------------------------------------- data
x, y = load_diabetes(return_X_y=True)
x = (20 * x).astype(dtype)
y = ((y - y.mean()) / y.std()).astype(dtype)[:, None]
train, test = slice(0, 400), slice(400, None)
rows = jaxpar.data.TensorDataset(x[train], y[train])
loader = jaxpar.data.DataLoader(rows, batch_size=options.batch_size, shuffle=True, seed=0)


# -------------------------------------------------------------------------------------------- model
class DNN(nnx.Module):
    def __init__(self, layers, rngs):
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in pairwise(layers)])

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = nnx.tanh(layer(x))
        return self.layers[-1](x)


layers = [10, options.width, options.width, 1]
net = jaxpar.to(DNN(layers, nnx.Rngs(0)), dtype=dtype)
module = net
if jaxpar.device_count() > 1:
    print(f"Let's use {jaxpar.device_count()} GPUs!")
    net = jaxpar.DataParallel(net)
optimizer = nnx.Optimizer(net, jaxpar.optim.sgd(lr=0.01, momentum=0.9, weight_decay=1e-2), wrt=nnx.Param)


@nnx.jit
def step(net, optimizer, x, y):
    loss, gradients = nnx.value_and_grad(lambda net: ((net(x) - y) ** 2).mean())(net)
    optimizer.update(net, gradients)
    return loss


# ------------------------------------------------------------------------------------ the same in torch
def torch_twin(net):
    """A function that trains torch's net, which begins with the same weights, on a batch."""
    import torch

    from torch_ref import pretend

    n = max(1, jaxpar.device_count())  # one CPU device does not count
    torch.set_default_dtype(torch.float64 if options.float64 else torch.float32)

    class DNN(torch.nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in pairwise(layers))

        def forward(self, x):
            for layer in self.layers[:-1]:
                x = torch.tanh(layer(x))
            return self.layers[-1](x)

    theirs = DNN(layers)
    theirs.load_state_dict(jaxpar.parity.to_torch(net, like=theirs))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-2)

    def step(x, y):
        with pretend(n) as devices:  # n GPUs, or as if there were n
            net = theirs.to(devices.device)
            if n > 1:
                net = torch.nn.DataParallel(net, device_ids=list(range(n)))
            x, y = torch.tensor(x).to(devices.device), torch.tensor(y).to(devices.device)
            loss = ((net(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        return loss.item()

    return step


# ----------------------------------------------------------------------------------------- training
def batches():
    while True:
        yield from loader


state = {"net": net, "optimizer": optimizer, "loader": loader}
with jaxpar.Checkpointer(run, save_every=100) as checkpointer, jaxpar.MetricsLog(run) as log:
    done, stopped = 0, False
    if checkpointer.latest_step() is not None:
        done = checkpointer.restore(**state).step
        log.resume_from(done + 1)
    if done and options.torch:
        parser.error("--torch begins at the first step: give another folder to --run")
    twin = torch_twin(module) if options.torch else None
    bar = jaxpar.progress(range(done + 1, options.steps + 1), description="training")
    try:
        for done, (a, b) in zip(bar, batches(), strict=False):
            loss = step(net, optimizer, a, b)
            bar.show(loss=loss)
            log.log(done, loss=loss)
            if twin and done <= 50:
                log.log(done, torch=twin(a, b))
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
error = float(np.mean((np.asarray(net(x[test])) - y[test]) ** 2))
print(f"test error {error:.3f}; predicting the mean gives {float(np.mean(y[test] ** 2)):.3f}")
