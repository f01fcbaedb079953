"""Digits in JAX with jaxpar: DistributedDataParallel, started by `jaxpar launch`."""

import optax
from digits import BATCH, EPOCHS, RATE, data, save, weights
from flax import nnx

import jaxpar
import jaxpar.distributed as dist
from jaxpar import nn, parity
from jaxpar.data import DataLoader, DistributedSampler, TensorDataset


def loss_fn(net, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()


dist.init_process_group()
dataset = TensorDataset(*data())
sampler = DistributedSampler(dataset, shuffle=False)
loader = DataLoader(dataset, batch_size=BATCH // dist.get_world_size(), sampler=sampler)

rngs = nnx.Rngs(0)
module = nnx.Sequential(
    nnx.Linear(64, 128, rngs=rngs), nn.BatchNorm(128), nnx.relu, nnx.Linear(128, 10, rngs=rngs)
)
parity.load_torch(module, weights())
net = jaxpar.DistributedDataParallel(module)
optimizer = nnx.Optimizer(net, jaxpar.optim.sgd(RATE, momentum=0.9), wrt=nnx.Param)
step = jaxpar.train_step(net, optimizer, loss_fn)

for _ in range(EPOCHS):
    for x, y in loader:
        step(x, y)

if dist.get_rank() == 0:
    save(parity.to_torch(module, like=weights()))
dist.destroy_process_group()
