"""Trains a classifier of images: one process for each GPU, checkpoints, a rate that falls.

torchrun --nproc-per-node 2 torch_script.py
"""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=32, help="of each process")
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--run", default="run", help="a folder for checkpoints")
parser.add_argument("--double", action="store_true", help="compute in float64")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.norm(self.conv(x))))
        return self.head(x.mean((2, 3)))


def images(seed, n):
    random = np.random.RandomState(seed)
    labels = random.randint(10, size=n)
    x = random.randn(n, 1, 8, 8) + labels[:, None, None, None] / 5
    return TensorDataset(torch.tensor(x, dtype=torch.get_default_dtype()), torch.tensor(labels))


def main(args):
    if args.double:
        torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DistributedDataParallel(Net())
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=2, gamma=0.1)

    train_data, test_data = images(0, 320), images(1, 96)
    sampler = DistributedSampler(train_data)
    train_loader = DataLoader(train_data, args.batch_size, sampler=sampler, drop_last=True)
    test_loader = DataLoader(test_data, args.batch_size)

    start = 0
    if os.path.exists(f"{args.run}/last.pt"):
        saved = torch.load(f"{args.run}/last.pt")
        net.module.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        start = saved["epoch"] + 1

    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        loss = train(train_loader, net, criterion, optimizer)
        scheduler.step()
        accuracy = test(test_loader, net)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss:.9f}, accuracy {accuracy:.3f}")
            os.makedirs(args.run, exist_ok=True)
            state = {"net": net.module, "optimizer": optimizer, "scheduler": scheduler}
            saved = {name: each.state_dict() for name, each in state.items()} | {"epoch": epoch}
            torch.save(saved, f"{args.run}/last.pt")
    dist.destroy_process_group()


def train(loader, net, criterion, optimizer):
    net.train()
    losses = []
    for x, y in loader:
        loss = criterion(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


def test(loader, net):
    net.eval()
    right = 0
    for x, y in loader:
        with torch.no_grad():
            right += (net(x).argmax(1) == y).sum().item()
    return right / len(loader.dataset)


if __name__ == "__main__":
    main(parser.parse_args())
