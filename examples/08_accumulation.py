"""Gradient accumulation: four small batches that do what one large one does.

What it adds: DistributedDataParallel in one process, where every replica has a loss of its own and the
gradients are averaged; `accumulate=k`, with one exchange of gradients and one update after k batches;
and the same by hand with `no_sync`. It shows first that all three make the same weights, then it trains.

The data are scikit-learn's digits: 1797 images of 8 x 8 pixels (E. Alpaydin and C. Kaynak, UCI
repository, CC BY 4.0; shipped with scikit-learn).

    python examples/08_accumulation.py
"""

import jax
import numpy as np
from flax import nnx
from sklearn.datasets import load_digits

import jaxpar
from jaxpar.data import DataLoader, TensorDataset
from jaxpar.nn.functional import cross_entropy

jaxpar.virtual_devices(4)  # without a GPU; with GPUs these are used
K, SIZE = 4, 32  # batches for one update, and the rows of each

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
train, test = slice(0, 1437), slice(1437, None)
rows = TensorDataset(images[train], labels[train])


def make():
    """The same net whenever it is called, and its optimizer."""
    rngs = nnx.Rngs(0)
    net = nnx.Sequential(nnx.Linear(64, 64, rngs=rngs), nnx.relu, nnx.Linear(64, 10, rngs=rngs))
    net = jaxpar.DistributedDataParallel(net)
    return net, nnx.Optimizer(net, jaxpar.optim.sgd(lr=0.2, momentum=0.9), wrt=nnx.Param)


def loss_fn(net, x, y):  # of one replica's rows
    return cross_entropy(net(x), y)


# ------------------------------------------------------------------- one large batch, then K small ones
small = [rows[i * SIZE : (i + 1) * SIZE] for i in range(K)]

large, optimizer = make()
jaxpar.train_step(large, optimizer, loss_fn)(*rows[: K * SIZE])

accumulated, optimizer = make()
step = jaxpar.train_step(accumulated, optimizer, loss_fn, accumulate=K)
for x, y in small:
    step(x, y)  # the weights move at the last one

by_hand, optimizer = make()
with by_hand.no_sync():
    for x, y in small[:-1]:
        by_hand.value_and_grad(loss_fn)(x, y)  # each replica keeps its gradients
_, gradients = by_hand.value_and_grad(loss_fn)(*small[-1])  # their sums, averaged over the replicas
optimizer.update(by_hand, jax.tree.map(lambda g: g / K, gradients))

for name, net in {"accumulate": accumulated, "no_sync": by_hand}.items():
    pairs = zip(jax.tree.leaves(nnx.state(net)), jax.tree.leaves(nnx.state(large)), strict=True)
    apart = max(float(abs(a - b).max()) for a, b in pairs)
    print(f"weights after {K} small batches ({name}) and a large one: largest difference {apart:.1e}")

# ------------------------------------------------------------------------------------------ training
net, optimizer = make()
step = jaxpar.train_step(net, optimizer, loss_fn, accumulate=K)
# drop_last: an epoch is 44 batches and so 11 whole updates.
loader = DataLoader(rows, batch_size=SIZE, shuffle=True, seed=0, drop_last=True)
for epoch in range(8):
    for x, y in loader:
        loss = step(x, y)
    print(f"epoch {epoch}: {step.updates} updates, loss {float(loss):.3f}")

accuracy = (np.asarray(net(images[test])).argmax(-1) == labels[test]).mean()
print(f"{net.replicas} replicas, {step.updates} updates of {K} batches; accuracy {accuracy:.1%}")
