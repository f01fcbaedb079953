"""torch modules in the style of research code. Every class with `inputs` is a case."""

from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    """An activation in place at the start of a block, whose input is added afterwards."""

    def __init__(self, width):
        super().__init__()
        self.block = nn.Sequential(nn.LeakyReLU(0.2, True), nn.Linear(width, width))
        self.act = nn.ELU(inplace=True)
        self.last = nn.Linear(width, width)

    def forward(self, x):
        x = self.last(x)
        x = torch.cat([x, self.block(x)], dim=1)
        x = x[:, :4] - x[:, 4:]
        shortcut = x
        out = self.last(self.act(x))
        out = self.last(out)
        y = F.leaky_relu(out, 0.1, inplace=True)
        return out * 2 + y + shortcut


class InPlaceFirst(nn.Module):
    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([Residual(4) for _ in range(2)])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x) + self.first(x)
        return x


class Mixed(nn.Module):
    """A hole: of two blocks one computes in place."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([nn.ReLU(inplace=flag) for flag in (True, False)])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return x


@dataclass
class Scores:
    scores: torch.Tensor
    loss: torch.Tensor | None = None


class Outputs(OrderedDict):
    def __post_init__(self):
        for field in fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)

    def to_tuple(self):
        return tuple(self[name] for name in self)


@dataclass
class Hidden(Outputs):
    hidden: torch.Tensor = None
    pooled: torch.Tensor = None
    others: torch.Tensor = None


class ReturnsFields(nn.Module):
    """A dataclass that is filled after it is made."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        result = Scores(scores=self.linear(x))
        result.loss = result.scores.square().mean()
        return result


class ReturnsDict(nn.Module):
    """A dict of a dataclass's fields, of the user's own base class."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        x = self.linear(x)
        return Hidden(hidden=x, pooled=x.mean(1))


class Contexts(nn.Module):
    """Contexts of autocast that variables hold, or that a condition chooses."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        chosen = torch.autocast("cpu", enabled=False) if x.ndim == 2 else nullcontext()
        with chosen:
            x = self.linear(x)
        with torch.autocast("cpu", enabled=False) if x.ndim == 3 else nullcontext():
            x = self.linear(x)
        kept = torch.autocast(device_type=x.device.type, enabled=False)
        with kept, torch.no_grad():
            target = self.linear(x)
        return x if x.ndim == 2 and not x.is_contiguous() else x + target


class Autocast(nn.Module):
    """A hole: a context that computes in bfloat16."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            x = self.linear(x)
        kept = torch.autocast("cpu", torch.bfloat16)
        with kept:
            return self.linear(x)


class Listed(nn.Module):
    """A dict and a list of modules that torch registers under other names."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.zipped = {}
        for i in range(2):
            layer = nn.Linear(4, 4)
            self.add_module(f"layer_{i}", layer)
            self.zipped[i] = layer
        self.rows = []
        for i in range(2):
            setattr(self, f"row_{i}", nn.Linear(4, 4))
            self.rows.append(getattr(self, f"row_{i}"))

    def forward(self, x):
        for i in range(2):
            x = self.rows[i](torch.tanh(self.zipped[i](x)))
        return x


class InPlaceFunctions(nn.Module):
    """Functions and layers that are called for what they change, and masks of rows."""

    inputs = ((3, 4),)

    def __init__(self, rate=0.0):
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), nn.ReLU(inplace=True)
        self.row = nn.Parameter(torch.ones(4) / 3)
        self.anchors = [torch.arange(4.0), torch.ones(4)]
        self.add_module("layer_0", nn.Linear(4, 4))
        self.rate = rate

    def forward(self, x):
        x = self.linear(x)
        F.leaky_relu_(x, 0.1)
        y = F.relu_(self.linear(x))
        part = self.linear(y)
        self.act(part)
        far = torch.ones(3, 4) / 2
        near = part < far
        far[near] = part[near]
        rows = torch.arange(3) > 1
        far = far + 0 * x
        far[rows] = self.row
        if not (self.training and torch.rand(1).item() < self.rate):
            far = self._modules[f"layer_{0}"](far)
        for anchor in self.anchors:
            far = far + anchor
        far[rows] *= 2
        return far + y


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.linspace(0, 1, 4))


class TakesParameters(nn.Module):
    """A parameter of another module, which is not kept."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        tower = Tower()
        self.places = tower.places

    def forward(self, x):
        return x * self.places


class Codebook(nn.Module):
    """A table that the constructor fills, and that training moves by averages, in `.data`."""

    inputs = ((5, 4),)

    def __init__(self, size=3, decay=0.9):
        super().__init__()
        self.encode = nn.Linear(4, 4)
        table = torch.empty(size, 4)
        nn.init.kaiming_uniform_(table)
        self.register_buffer("sizes", torch.zeros(size))
        self.register_buffer("table", table)
        self.register_buffer("sums", table.clone())
        self.size, self.decay = size, decay

    def forward(self, x):
        x = self.encode(x)
        distances = (x[:, None] - self.table).square().sum(-1)
        chosen = F.one_hot(distances.min(dim=-1).indices, self.size).type(x.type())
        if self.training:
            self.sizes.data.mul_(self.decay).add_(chosen.sum(0), alpha=1 - self.decay)
            self.sums.data.mul_(self.decay).add_((x.t() @ chosen).t(), alpha=1 - self.decay)
            self.table.data.copy_(self.sums / (self.sizes + 0.1).unsqueeze(1))
        nearest = torch.empty_like(x)
        nearest[:] = chosen @ self.table
        loss = torch.tensor(0.0, requires_grad=self.training) + F.mse_loss(nearest.detach(), x)
        return x + (nearest - x).detach(), loss


class Transpose(nn.Module):
    """Axes that a tuple holds; no case of its own."""

    def __init__(self, *dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.transpose(*self.dims)


class Injected(nn.Module):
    """Noise that is drawn into new tensors, and parameters that are trained if an argument has it so."""

    inputs = ((3, 4),)

    def __init__(self, learned=True, fixed=False):
        super().__init__()
        self.linear, self.turn = nn.Linear(4, 4), Transpose(0, 1)
        self.strength = nn.Parameter(torch.ones(3), requires_grad=learned)
        self.places = nn.Parameter(torch.randn(4).mul_(0.5), fixed)
        self.register_buffer("start", torch.empty(4).normal_())

    def forward(self, x):
        x = self.linear(x) + self.places + self.start
        rows, columns = x.shape
        noise = x.new_empty(columns, rows).normal_()
        if self.training:
            kept = torch.zeros_like(x)
            kept.uniform_()
            x = x * (kept > 0.5)
            x = x + torch.FloatTensor(x.size()).normal_(0, 1)
        return self.turn(x) + self.strength * noise


class Refilled(nn.Module):
    """A hole: noise that takes the place of numbers that another name reads."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = self.linear(x).detach()
        noise = x.normal_()
        return x + self.linear(noise)


class Placed(nn.Module):
    """Initial values that a constructor draws into a new tensor, of a class whose call draws nothing."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.empty(4).normal_())

    def forward(self, x):
        return x * self.places


def seasons(count, t):
    return torch.tensor(np.array([np.cos(2 * np.pi * i * t) for i in range(count)])).float()


class Forecasts(nn.Module):
    """Tables of NumPy that are attributes, a time whose type a call sets, and a size that torch computes."""

    inputs = ((3, 2, 4),)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 5)
        self.times = np.arange(6) / 6
        self.steps = torch.tensor([0.0, 0.25, 1.0])
        self.encoding = Encoding(5)
        self.start = torch.ones(5).data

    def forward(self, x):
        self.steps = self.steps.type_as(x)
        size = torch.prod(torch.tensor(x.shape[1:])).item()
        size = int(np.prod([1, size + 0])) * int(np.ceil(x.shape[0] / (x.shape[0] + 1)))
        x = self.linear(x.view(-1, size))
        for first, second in zip(self.steps[:-1], self.steps[1:], strict=True):
            x = x + (second - first) * torch.tanh(x)
        return x @ seasons(5, self.times) + self.encoding(x).sum() + (x * self.start).sum()


class Encoding(nn.Module):
    """A table that the constructor makes by the method that a longer input would call again."""

    def __init__(self, width, longest=8):
        super().__init__()
        self.width, self.table = width, None
        self.extend(torch.tensor(0.0).expand(longest, width))

    def extend(self, x):
        if self.table is not None and len(self.table) >= len(x):
            return
        self.table = torch.arange(len(x) * self.width, dtype=torch.float32).view(-1, self.width).sin()

    def forward(self, x):
        self.extend(x)
        return self.table[: len(x)] * x


def chunk(width, device=None):
    q, r = torch.linalg.qr(torch.eye(width) + 0.5, mode="reduced")
    q, r = map(lambda x: x.to(device), (q, r))  # noqa: C417
    return q.t()


class Moved(nn.Module):
    """Layers and tensors that are moved to devices, and a table that is marked as not trained."""

    inputs = ((3, 4),)

    def __init__(self, device="cpu"):
        super().__init__()
        self.linear = nn.Linear(4, 4).to(device)
        self.other = nn.Linear(4, 4).cpu()
        table = torch.linspace(0, 1, 4)
        table.requires_grad = False
        table.require_grad = False
        self.register_buffer("table", table)
        self.register_buffer("turn", chunk(4))
        self.device = torch.device(device)
        self.to(self.device)

    def forward(self, x):
        x = self.other(self.linear(x.to(self.device))) @ self.turn
        return nn.LayerNorm(x.shape[1:]).to(x.device)(x) + self.table
