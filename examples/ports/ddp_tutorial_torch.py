"""The tutorial on DistributedDataParallel, in torch: the program of
https://github.com/pytorch/examples/tree/main/distributed/ddp-tutorial-series in words of our own. It saves a
snapshot now and then, and a job that is started again goes on from it.

    torchrun --nproc-per-node 2 examples/ports/ddp_tutorial_torch.py 10 2
"""

import argparse
import os

import torch
import torch.nn.functional as F
from torch.distributed import destroy_process_group, get_rank, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class MyTrainDataset(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(0)
        self.data = [[torch.rand(n, generator=generator) for n in (20, 1)] for _ in range(size)]

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
        self.epochs_run = 0
        if os.path.exists(snapshot_path):
            self.load_snapshot()
        self.model = DistributedDataParallel(self.model)

    def load_snapshot(self):
        snapshot = torch.load(self.snapshot_path)
        self.model.load_state_dict(snapshot["model"])
        self.optimizer.load_state_dict(snapshot["optimizer"])
        self.epochs_run = snapshot["epochs_run"]
        print(f"[{self.rank}] going on at epoch {self.epochs_run}")

    def run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(source), targets)
        loss.backward()
        self.optimizer.step()

    def run_epoch(self, epoch):
        print(f"[{self.rank}] epoch {epoch}: {len(self.train_data)} steps")
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            self.run_batch(source, targets)

    def save_snapshot(self, epoch):
        snapshot = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epochs_run": epoch + 1,
        }
        torch.save(snapshot, self.snapshot_path)
        print(f"epoch {epoch}: snapshot saved at {self.snapshot_path}")

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self.run_epoch(epoch)
            if self.rank == 0 and epoch % self.save_every == 0:
                self.save_snapshot(epoch)


def load_train_objs():
    train_set = MyTrainDataset(2048)  # your data
    model = torch.nn.Linear(20, 1)  # your model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return train_set, model, optimizer


def prepare_dataloader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, shuffle=False, sampler=DistributedSampler(dataset))


def main(arguments=None):
    parser = argparse.ArgumentParser(description="A small distributed training job")
    parser.add_argument("total_epochs", type=int, help="how often to go through the data")
    parser.add_argument("save_every", type=int, help="epochs between two snapshots")
    parser.add_argument("--batch-size", type=int, default=32, help="rows of a batch in each process")
    parser.add_argument("--snapshot", default="snapshot.pt", help="where to save")
    parser.add_argument("--dtype", default="float32", help="float64 to compare")
    args = parser.parse_args(arguments)

    init_process_group(backend="gloo")
    torch.set_default_dtype(getattr(torch, args.dtype))
    torch.manual_seed(0)
    dataset, model, optimizer = load_train_objs()
    train_data = prepare_dataloader(dataset, args.batch_size)
    trainer = Trainer(model, train_data, optimizer, args.save_every, args.snapshot)
    trainer.train(args.total_epochs)
    destroy_process_group()
    return trainer.model.module, []


if __name__ == "__main__":
    main()
