"""A small torch module with parameters of every kind that an optimizer tells apart."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, (2, 3))
        self.norm = nn.GroupNorm(1, 3)
        self.mix = nn.Parameter(torch.randn(12, 6) / 3)
        self.hidden = nn.Linear(6, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        x = self.norm(self.conv(x)).relu()
        x = self.hidden(x.flatten(1) @ self.mix)
        return self.head(x.relu())


class Matrices(nn.Module):
    """What Muon takes: matrices alone, of which one lies in Flax as in torch."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(6, 3) / 3)
        self.down = nn.Linear(3, 7, bias=False)

    def forward(self, x):
        return self.down(x @ self.mix)
