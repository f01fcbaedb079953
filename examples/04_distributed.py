"""Digits in any number of processes: the same script alone, under `jaxpar launch` and under torchrun.

What it adds: init_process_group, DistributedDataParallel, a DistributedSampler for training, and an
EvaluationSampler, which gives every test image to exactly one rank: the accuracy is that of the test
set, not of a padded one. Everything else is as in one process.

The data are scikit-learn's digits: 1797 images of 8 x 8 pixels (E. Alpaydin and C. Kaynak, UCI
repository, CC BY 4.0; shipped with scikit-learn).

    python examples/04_distributed.py                             # alone, on all its devices
    jaxpar launch -n 2 examples/04_distributed.py
    torchrun --nproc-per-node 2 examples/04_distributed.py
"""

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import jaxpar
import jaxpar.distributed as dist
from jaxpar.data import DataLoader, DistributedSampler, EvaluationSampler, TensorDataset

dist.init_process_group()  # before anything uses JAX; imports are fine
rank, world = dist.get_rank(), dist.get_world_size()
BATCH, EPOCHS, TEST = 64, 4, 297

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
labels = labels.astype(np.int32)
train, test = TensorDataset(images[TEST:], labels[TEST:]), TensorDataset(images[:TEST], labels[:TEST])

# BATCH is that of all ranks together, so the result depends little on how many there are.
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=BATCH // world, sampler=sampler)
evaluation = DataLoader(test, batch_size=BATCH // world, sampler=EvaluationSampler(test))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(64, 128, rngs=rngs)
        self.norm = jaxpar.nn.BatchNorm(128)
        self.last = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.norm(self.first(x))))


def loss_fn(net, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()


net = jaxpar.DistributedDataParallel(Net(nnx.Rngs(rank)))  # all ranks go on with rank 0's weights
optimizer = nnx.Optimizer(net, jaxpar.optim.sgd(lr=0.1, momentum=0.9), wrt=nnx.Param)
step = jaxpar.train_step(net, optimizer, loss_fn)

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    net.train()
    for x, y in loader:
        loss = step(x, y)  # the mean over all ranks
    net.eval()
    right = rows = 0
    for x, y in evaluation:
        right += int((jnp.argmax(net(x), -1) == y).sum())
        rows += len(y)
    right, rows = map(int, dist.all_reduce((right, rows)))
    if rank == 0:
        print(f"epoch {epoch}: loss {float(loss):.3f}")

if rank == 0:
    print(f"{world} x {len(net.device_ids)} devices: {right} of {rows} right, {right / rows:.0%}")
dist.destroy_process_group()
