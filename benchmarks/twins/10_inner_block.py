"""What torch does in examples/10_inner_block.py."""

import torch
from torch import nn

from jaxpar import parity


class MyModel(nn.Module):
    def __init__(self, width, n):
        super().__init__()
        self.block1 = nn.Linear(64, width)
        self.block2 = nn.Linear(width, width)
        self.block2 = nn.DataParallel(self.block2, device_ids=list(range(n)))
        self.block3 = nn.Linear(width, 10)

    def forward(self, x):
        x = torch.relu(self.block1(x))
        x = torch.relu(self.block2(x))
        return self.block3(x)


def twin(example, net, n, accumulate):
    theirs = MyModel(64, n).double()
    theirs.load_state_dict(parity.to_torch(net, like=theirs))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)

    def loss_fn(x, y):
        loss = nn.functional.cross_entropy(theirs(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return {"loss_fn": loss_fn}
