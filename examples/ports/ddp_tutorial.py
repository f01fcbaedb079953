"""The tutorial on DistributedDataParallel, in jaxpar: what ddp_tutorial_torch.py does.

jaxpar launch -n 2 examples/ports/ddp_tutorial.py 10 2
"""

import argparse
import os

import jax
from flax import nnx

import jaxpar
import jaxpar.nn.functional as F
from jaxpar import DistributedDataParallel
from jaxpar.data import DataLoader, Dataset, DistributedSampler
from jaxpar.distributed import destroy_process_group, get_rank, init_process_group
from jaxpar.optim import Optimizer, sgd


class MyTrainDataset(Dataset):
    def __init__(self, size, dtype):
        generator = jaxpar.random.Generator(0)
        self.data = [[generator.rand(n, dtype=dtype) for n in (20, 1)] for _ in range(size)]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


class Trainer:
    def __init__(self, model, train_data, optimizer, save_every, snapshot_path):
        self.rank = get_rank()
        self.model = model
        self.train_data = train_data
        self.optimizer = optimizer
        self.save_every = save_every
        self.snapshot_path = snapshot_path
        self.checkpointer = jaxpar.Checkpointer(snapshot_path)
        self.epochs_run = 0
        if os.path.exists(snapshot_path):
            self.load_snapshot()
        self.step = jaxpar.train_step(model, optimizer, loss_fn)

    def load_snapshot(self):
        self.epochs_run = self.checkpointer.resume(model=self.model, optimizer=self.optimizer)
        print(f"[{self.rank}] going on at epoch {self.epochs_run}")

    def run_batch(self, source, targets):
        self.step(source, targets)

    def run_epoch(self, epoch):
        print(f"[{self.rank}] epoch {epoch}: {len(self.train_data)} steps")
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            self.run_batch(source, targets)

    def save_snapshot(self, epoch):
        self.checkpointer.save(epoch, model=self.model, optimizer=self.optimizer)
        print(f"epoch {epoch}: snapshot saved at {self.snapshot_path}")

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self.run_epoch(epoch)
            if self.rank == 0 and epoch % self.save_every == 0:
                self.save_snapshot(epoch)


def loss_fn(model, source, targets):
    return F.mse_loss(model(source), targets)


def load_train_objs(dtype):
    train_set = MyTrainDataset(2048, dtype)  # your data
    model = jaxpar.to(nnx.Linear(20, 1, rngs=nnx.Rngs(0)), dtype=dtype)  # your model
    model = DistributedDataParallel(jaxpar.random.torch_init(model, 0))
    optimizer = Optimizer(model, sgd(lr=1e-3))
    return train_set, model, optimizer


def prepare_dataloader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, shuffle=False, sampler=DistributedSampler(dataset))


def main(arguments=None):
    parser = argparse.ArgumentParser(description="A small distributed training job")
    parser.add_argument("total_epochs", type=int, help="how often to go through the data")
    parser.add_argument("save_every", type=int, help="epochs between two snapshots")
    parser.add_argument("--batch-size", type=int, default=32, help="rows of a batch in each process")
    parser.add_argument("--snapshot", default="snapshot", help="where to save")
    parser.add_argument("--dtype", default="float32", help="float64 to compare")
    args = parser.parse_args(arguments)

    init_process_group(backend="gloo")
    jax.config.update("jax_enable_x64", args.dtype == "float64")
    dataset, model, optimizer = load_train_objs(args.dtype)
    train_data = prepare_dataloader(dataset, args.batch_size)
    trainer = Trainer(model, train_data, optimizer, args.save_every, args.snapshot)
    trainer.train(args.total_epochs)
    trainer.checkpointer.close()
    destroy_process_group()
    return trainer.model.module, []


if __name__ == "__main__":
    main()
