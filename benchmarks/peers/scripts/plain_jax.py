"""Digits in JAX and Flax by hand: one process, jit over a mesh of its devices."""

import jax
import numpy as np
import optax
from digits import BATCH, EPOCHS, RATE, data, save, weights
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

start = weights()
rngs = nnx.Rngs(0)
net = nnx.Sequential(
    nnx.Linear(64, 128, rngs=rngs),
    nnx.BatchNorm(128, momentum=0.9, epsilon=1e-5, rngs=rngs),
    nnx.relu,
    nnx.Linear(128, 10, rngs=rngs),
)
first, norm, _, last = net.layers
for layer, name in ((first, "0"), (last, "3")):
    layer.kernel[...], layer.bias[...] = start[f"{name}.weight"].T, start[f"{name}.bias"]

mesh = Mesh(np.array(jax.devices()), ("data",))
rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
optimizer = nnx.Optimizer(net, optax.sgd(RATE, momentum=0.9), wrt=nnx.Param)
graph, state = nnx.split((net, optimizer))
state = jax.device_put(state, everywhere)


@jax.jit
def step(state, x, y):
    net, optimizer = nnx.merge(graph, state)

    def loss_fn(net):
        return optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()

    optimizer.update(net, nnx.grad(loss_fn)(net))
    return nnx.state((net, optimizer))


images, labels = data()
whole = len(images) // BATCH * BATCH  # a sharded batch must divide evenly: the last 5 rows are dropped
for _ in range(EPOCHS):
    for i in range(0, whole, BATCH):
        x, y = jax.device_put((images[i : i + BATCH], labels[i : i + BATCH]), rows)
        state = step(state, x, y)

nnx.update((net, optimizer), state)
trained = {
    "1.weight": norm.scale,
    "1.bias": norm.bias,
    "1.running_mean": norm.mean,
    "1.running_var": norm.var,
}
for layer, name in ((first, "0"), (last, "3")):
    trained |= {f"{name}.weight": layer.kernel.T, f"{name}.bias": layer.bias}
save(trained)
