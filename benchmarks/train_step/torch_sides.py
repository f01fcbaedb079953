"""torch: its own DataParallel code, and DDP in processes of its own that run a round when asked.

python torch_sides.py MODEL N B SIZE     # one rank of DDP: reads a number of steps for each round
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from batches import batch_of, strides
from torch import nn


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.c2, self.b2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.short = nn.Conv2d(i, o, 1, stride, bias=False) if stride > 1 or i != o else nn.Identity()

    def forward(self, x):
        y = self.b2(self.c2(torch.relu(self.b1(self.c1(x)))))
        return torch.relu(y + self.short(x))


def model_of(name):
    if name == "mlp":
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    blocks = [Block(max(o // 2, 64) if s > 1 else o, o, s) for o in (64, 128, 256, 512) for s in strides(o)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), *blocks, *head)


def step_of(net, x, t, transpose):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step():
        rows = torch.from_numpy(x.transpose(0, 3, 1, 2) if transpose else x)
        loss = ((net(rows) - torch.from_numpy(t)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def data_parallel(N, x, t):
    """torch's own DataParallel code; on a host without GPUs its replicas are threads on the CPU."""
    import torch_ref

    def once():
        with torch_ref.pretend(N):
            step()

    with torch_ref.pretend(N) as devices:
        net = torch.nn.DataParallel(
            model_of("mlp" if x.ndim == 2 else "resnet18").to(devices.device), list(range(N))
        )
    step = step_of(net, x, t, x.ndim == 4)
    return once


class DDP:
    """N processes over gloo."""

    def __init__(self, name, N, B, size):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        shared = {"WORLD_SIZE": str(N), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        arguments = [name, str(N), str(B), str(size)]
        self.ranks = [
            subprocess.Popen(
                [sys.executable, __file__, *arguments],
                env=os.environ | shared | {"RANK": str(r)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for r in range(N)
        ]

    def __call__(self, n):
        for rank in self.ranks:
            rank.stdin.write(f"{n}\n")
            rank.stdin.flush()
        return max(float(rank.stdout.readline()) for rank in self.ranks)

    def end(self):
        for rank in self.ranks:
            rank.stdin.close()
            rank.wait()


def rank_of(name, N, B, size):
    """One process of torch's DDP: a round for every line on stdin."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // N))
    torch.distributed.init_process_group("gloo")
    x, t = (a[rank * len(a) // N : (rank + 1) * len(a) // N] for a in batch_of(name, B, size))
    net = torch.nn.parallel.DistributedDataParallel(model_of(name))
    step = step_of(net, x, t, name == "resnet18")
    for line in sys.stdin:
        torch.distributed.barrier()
        start = time.perf_counter()
        for _ in range(int(line)):
            step()
        torch.distributed.barrier()
        print((time.perf_counter() - start) / int(line), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    rank_of(name, *map(int, numbers))
