"""Lines that the example does not run: random numbers, layers made in a call, names that nothing defines."""

import torch
import torch.nn.functional as F
from torch import nn


def shuffled(x, p=0.0):
    if p > 0:
        x = x[torch.randperm(x.shape[0])]
    return x


def noisy(x, p=0.0):
    if p > 0:
        x = x + torch.randn_like(x) + torch.randn(x.shape) + torch.randn([])
        x = F.dropout(x, p) + torch.rand(4).uniform_() + torch.empty(4).normal_()
    return x


def dropped(x):
    logits = torch.randn(x.shape[0], device=x.device)
    return x[logits.topk(1).indices]


class Noise(nn.Module):
    def __init__(self, width=4, p=0.0):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.p = p

    def forward(self, x):
        x = self.linear(x)
        if self.p > 0:
            order = torch.randperm(x.shape[0])
            x = x[order] * torch.randn(4) * torch.randn(()) + torch.multinomial(x, 1)
            x = nn.Linear(4, 4)(x) * torch.empty(4).uniform_()
        if self.training and self.p > 0:
            x = dropped(x)
        if self.p > 1:
            import torch._dynamo as dynamo

            x = x * dynamo.is_compiling() + undefined(x)  # noqa: F821
        return noisy(shuffled(x, self.p), self.p)
