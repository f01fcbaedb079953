"""What torch does in examples/08_accumulation.py: its n processes, one after the other."""

import torch
from torch import nn

from jaxpar import parity


def twin(example, net, n, accumulate):
    theirs = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).double()
    theirs.load_state_dict(parity.to_torch(net.module, like=theirs))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.2, momentum=0.9)
    batches = 0

    def loss_fn(x, y):
        nonlocal batches
        total = 0
        for a, b in zip(x.chunk(n), y.chunk(n), strict=True):
            loss = nn.functional.cross_entropy(theirs(a), b) / n
            (loss / accumulate).backward()
            total += loss.detach()
        batches += 1
        if batches % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        return total

    return {"loss_fn": loss_fn}
