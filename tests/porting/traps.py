"""Modules whose ports could pass a weaker proof: right, a hole, or a named difference."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class CopiedDropout(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        self.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class OrderOfKeys(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, d):
        first, second = list(d.values())
        return self.layer(first) - 2 * second


class ParametersByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.ParameterDict({"b": nn.Parameter(torch.randn(4)), "a": nn.Parameter(torch.randn(4))})

    def forward(self, x):
        for i, (_, p) in enumerate(self.p.items()):
            x = x * (i + 1) + p
        return x


class LargeIntegers(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(101, 4)

    def forward(self, t):
        return self.e((t * 73856093) % 101)


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.layer(x)
        return x.float()


class PaddedEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1)

    def forward(self, x, mask):
        return self.net(x, src_key_padding_mask=mask)


class AliasNotRun(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, twice=False):
        y = self.layer(x)
        if twice:
            z = y
            z.mul_(2)
            return y + z
        return y


class AliasBoundNotRun(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, shift=None):
        y = self.layer(x)
        z = y.abs()
        if shift is not None:
            z = y.t().t()
        z.add_(1)
        return y + z


class MaskNotRun(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, mask=None):
        y = self.layer(x)
        if mask is not None:
            if mask.dim() == 2:
                mask = mask.view(3, 1, 4)
            y = y.masked_fill(mask.squeeze(1).type_as(y) == 0, 0.5)
        return y


class IntegerPower(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(10, 4)
        self.register_buffer("i", torch.tensor([-1, 2, 0, -3]))

    def forward(self, t):
        return self.e(t) * 2**self.i


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(10, 4, _freeze=True)

    def forward(self, t):
        return self.e(t)


class Kinks(nn.Module):
    """Derivatives at bounds, at 0 and at equal values."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        y = x * self.scale
        spread, size = y.std(1), y.norm(dim=1)
        return x.clamp(-1, 1) * y, spread, size, torch.cdist(y, y), y.abs(), y.max(1).values, F.relu6(y)
