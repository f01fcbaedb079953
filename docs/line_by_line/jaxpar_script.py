"""Trains a classifier of images: any number of processes and devices, checkpoints, a rate that falls.

jaxpar launch -n 2 jaxpar_script.py
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxpar
import jaxpar.distributed as dist
from jaxpar.data import DataLoader, DistributedSampler, TensorDataset
from jaxpar.nn.functional import cross_entropy
from jaxpar.optim.lr_scheduler import StepLR

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=32, help="of each process")
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--run", default="run", help="a folder for checkpoints")
parser.add_argument("--double", action="store_true", help="compute in float64")


class Net(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 8, (3, 3), padding=1, rngs=rngs)
        self.norm = jaxpar.nn.BatchNorm(8, rngs=rngs)
        self.pool = jaxpar.nn.MaxPool((2, 2))
        self.head = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x):
        x = self.pool(nnx.relu(self.norm(self.conv(x))))
        return self.head(x.mean((1, 2)))


def images(seed, n):
    random = np.random.RandomState(seed)
    labels = random.randint(10, size=n)
    x = random.randn(n, 1, 8, 8) + labels[:, None, None, None] / 5
    return TensorDataset(x.transpose(0, 2, 3, 1).astype(jnp.result_type(float)), labels)


def main(args):
    if args.double:
        jax.config.update("jax_enable_x64", True)
    dist.init_process_group()
    net = jaxpar.to(Net(nnx.Rngs(0)), dtype=jnp.result_type(float))
    net = jaxpar.DistributedDataParallel(jaxpar.random.torch_init(net, 0))
    optimizer = jaxpar.optim.Optimizer(net, jaxpar.optim.sgd(args.lr, momentum=0.9, weight_decay=1e-4))
    scheduler = StepLR(optimizer, step_size=2, gamma=0.1)
    step = jaxpar.train_step(net, optimizer, lambda net, x, y: cross_entropy(net(x), y))
    evaluate = jaxpar.eval_step(net, lambda net, x, y: (net(x).argmax(-1) == y).sum())

    rank, world_size = dist.get_rank(), dist.get_world_size()
    train_data, test_data = images(0, 320), images(1, 96)
    sampler = DistributedSampler(train_data, world_size, rank)
    train_loader = DataLoader(train_data, args.batch_size, sampler=sampler, drop_last=True)
    test_loader = DataLoader(test_data, args.batch_size)

    start = 0
    state = {"net": net, "optimizer": optimizer, "scheduler": scheduler, "step": step}
    checkpointer = jaxpar.Checkpointer(args.run)
    if checkpointer.latest_step() is not None:
        start = checkpointer.restore(**state).step + 1

    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        loss = train(train_loader, step)
        scheduler.step()
        accuracy = test(test_loader, evaluate)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.9f}, accuracy {accuracy:.3f}")
        checkpointer.save(epoch, **state)
    checkpointer.close()
    dist.destroy_process_group()


def train(loader, step):
    losses = []
    for x, y in loader:
        losses.append(step(x, y))
    return jnp.stack(losses).mean().item()


def test(loader, evaluate):
    right = 0
    for x, y in loader:
        right += evaluate(x, y).item()
    return right / len(loader.dataset)


if __name__ == "__main__":
    main(parser.parse_args())
