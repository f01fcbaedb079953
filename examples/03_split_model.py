"""One network in two halves on two devices, the second half parallel over the others.

What it adds: model parallelism by hand, and DataParallel of a part.

The data are scikit-learn's diabetes measurements of 442 patients (Efron, Hastie, Johnstone and
Tibshirani 2004; shipped with scikit-learn, BSD-3-Clause).

    python examples/03_split_model.py
"""

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_diabetes

import jaxpar

jaxpar.virtual_devices(4)
OTHERS = list(range(1, jaxpar.device_count())) or [0]


class Split(nnx.Module):
    """Device 0 computes the first half; each other device takes a share of the rows of the second."""

    def __init__(self, rngs):
        first = nnx.Sequential(nnx.Linear(10, 32, rngs=rngs), nnx.tanh)
        second = nnx.Sequential(nnx.Linear(32, 32, rngs=rngs), nnx.tanh, nnx.Linear(32, 1, rngs=rngs))
        self.first = jaxpar.OnDevice(first, 0)
        self.second = jaxpar.DataParallel(second, OTHERS, output_device=OTHERS[0])

    def __call__(self, x):
        return self.second(self.first(x))  # the rows are scattered from device 0 to the others


x, y = load_diabetes(return_X_y=True)
x = (20 * x).astype(np.float32)
y = ((y - y.mean()) / y.std()).astype(np.float32)[:, None]
train, test = slice(0, 400), slice(400, None)

net = Split(nnx.Rngs(0))
optimizer = nnx.Optimizer(net, jaxpar.each_device(optax.adam(3e-3)), wrt=nnx.Param)
target = jaxpar.to(y[train], OTHERS[0])


def loss_fn(net):
    return jnp.mean((net(x[train]) - target) ** 2)


for step in range(40):
    loss, gradients = nnx.value_and_grad(loss_fn)(net)
    optimizer.update(net, gradients)
    if step % 10 == 0:
        print(f"step {step:2}: loss {loss:.4f}")

error = float(np.mean((np.asarray(net(x[test])) - y[test]) ** 2))
print("first half on", jaxpar.device_of(net.first), "- second half on", net.second.device_ids)
print(f"test error {error:.3f}; predicting the mean gives {float(np.mean(y[test] ** 2)):.3f}")
