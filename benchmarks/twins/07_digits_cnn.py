"""What torch does in examples/07_digits_cnn.py, without dropout: torch draws other masks."""

import torch
from torch import nn

from jaxpar import parity


class CNN(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(4 * 2 * width, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.norm1(self.conv1(x.movedim(-1, 1)))))
        x = self.pool(torch.relu(self.norm2(self.conv2(x))))
        return self.head(x.permute(0, 2, 3, 1).flatten(1))  # in the order of channels last


def twin(example, net, n, accumulate):
    net.module.drop.rate = 0.0
    theirs = CNN(16).double()
    theirs.load_state_dict(parity.to_torch(net.module, like=theirs))
    theirs = nn.DataParallel(theirs, device_ids=list(range(n)))
    optimizer = torch.optim.Adam(theirs.parameters(), lr=2e-3)

    def loss_fn(x, y):
        loss = nn.functional.cross_entropy(theirs(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return {"loss_fn": loss_fn}
