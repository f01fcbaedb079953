"""The usual regression script, where one line makes it parallel.

What it adds: a whole training. `net = jaxpar.DataParallel(net)` is all that is about devices; the step
is Flax's own idiom under `nnx.jit`. A batch that does not divide evenly, such as the last one of every
epoch, is split as torch splits it.

The data are scikit-learn's diabetes measurements: 442 patients, 10 numbers each (Efron, Hastie,
Johnstone and Tibshirani 2004; shipped with scikit-learn, BSD-3-Clause).

    python examples/06_regression.py
"""

from itertools import pairwise

import numpy as np
from flax import nnx
from sklearn.datasets import load_diabetes

import jaxpar
from jaxpar.data import DataLoader, TensorDataset

jaxpar.virtual_devices(4)  # without a GPU; with GPUs these are used

x, y = load_diabetes(return_X_y=True)
x = (20 * x).astype(np.float32)
y = ((y - y.mean()) / y.std()).astype(np.float32)[:, None]
train, test = slice(0, 400), slice(400, None)
loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=60, shuffle=True, seed=0)


class DNN(nnx.Module):
    def __init__(self, sizes, rngs):
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in pairwise(sizes)])

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = nnx.tanh(layer(x))
        return self.layers[-1](x)


net = DNN([10, 64, 64, 1], nnx.Rngs(0))
if jaxpar.device_count() > 1:
    print(f"Let's use {jaxpar.device_count()} GPUs!")
    net = jaxpar.DataParallel(net)
optimizer = nnx.Optimizer(net, jaxpar.optim.sgd(lr=0.01, momentum=0.9, weight_decay=1e-2), wrt=nnx.Param)


@nnx.jit
def step(net, optimizer, x, y):
    # torch: optimizer.zero_grad(); loss.backward(); optimizer.step()
    loss, gradients = nnx.value_and_grad(lambda net: ((net(x) - y) ** 2).mean())(net)
    optimizer.update(net, gradients)
    return loss


for epoch in range(20):
    for a, b in loader:  # 60 rows as 15 on each of four devices; the last 40 as 10 on each
        loss = step(net, optimizer, a, b)
    if epoch % 5 == 4:
        print(f"epoch {epoch}: loss {loss:.3f}")

error = float(np.mean((np.asarray(net(x[test])) - y[test]) ** 2))
print(f"test error {error:.3f}; predicting the mean gives {float(np.mean(y[test] ** 2)):.3f}")
