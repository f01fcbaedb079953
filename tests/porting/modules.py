"""torch modules of one construct each. Every class at the top of this file with `inputs` is a case."""

import itertools
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (5, 4)
UNBIASED = partial(nn.Linear, bias=False)


class MLP(nn.Module):
    """A list of layers."""

    inputs = ((3, 6),)

    def __init__(self, widths=(6, *WIDTHS)):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise(widths))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)


class CNN(nn.Module):
    """Convolutions, BatchNorm, Dropout, in torch's axes: flatten, mean and cat mean the same."""

    inputs = ((2, 3, 8, 8),)

    def __init__(self, width: int = 4, norm_layer=nn.BatchNorm2d):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = norm_layer(width)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.3)
        self.pool = nn.AdaptiveAvgPool2d((2, 2))
        self.head = nn.Linear(2 * 4 * width, 3)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.conv(x)))
        x = torch.cat([x, -x], dim=1)  # the channels
        x = self.pool(self.drop(x))
        return self.head(torch.flatten(x, 1)), x.mean([2, 3])


class Buffers(nn.Module):
    """Buffers that count and that are read, a parameter, a slice."""

    inputs = ((3, 4),)

    def __init__(self, size=4):
        super().__init__()
        self.register_buffer("mean", torch.linspace(0, 1, size))
        self.register_buffer("steps", torch.zeros(1))
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, x):
        if self.training:
            self.steps += 1
            self.mean.mul_(0.9)
        return (x - self.mean) * self.scale[None, :], x[:, 1:-1]


class InPlace(nn.Module):
    """Writes into a part of an array."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        y = y.clone()
        y[:, 0] = 0.0
        y[:, 1:3] += x[:, :2]
        z = torch.zeros_like(y)
        z[0] = y[1]
        return y.add(z)


class Named(nn.Module):
    """Sequential with names, a partial, a class as an argument, setattr."""

    inputs = ((2, 4),)

    def __init__(self, layer=UNBIASED, depth=2):
        super().__init__()
        self.body = nn.Sequential(
            OrderedDict([("first", layer(4, 5)), ("act", nn.GELU()), ("last", layer(5, 4))])
        )
        for i in range(depth):
            setattr(self, f"extra{i}", nn.Sequential(nn.LayerNorm(4), nn.SiLU(inplace=True)))
        self.depth = depth

    def forward(self, x):
        x = self.body(x)
        for i in range(self.depth):
            x = x + getattr(self, f"extra{i}")(x)
        return {"y": x, "parts": [x.sum(-1), x.amax(dim=1, keepdim=True)]}


class Attention(nn.Module):
    """einsum, view, transpose, masks, a property of the shape."""

    inputs = ((2, 5, 8),)

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.heads = heads

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (a.view(B, T, self.heads, C // self.heads).transpose(1, 2) for a in (q, k, v))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / (C // self.heads) ** 0.5
        mask = torch.tril(torch.ones(T, T, dtype=torch.bool, device=x.device))
        scores = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        y = (scores @ v).transpose(1, 2).contiguous().view(B, T, C)
        return F.normalize(y, dim=-1)


class Optional(nn.Module):
    """An attribute that is None or a layer, keyword-only and optional inputs, flags."""

    inputs = ((2, 4),)

    def __init__(self, *, deep: bool = True):
        super().__init__()
        self.extra = None
        if deep:
            self.extra = nn.Linear(4, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, x, scale=None, *, twice=False):
        if self.extra is not None:
            x = torch.tanh(self.extra(x))
        if scale is not None:
            x = x * scale
        return self.out(x + x if twice else x)


class Lists(nn.Module):
    """ParameterList and a constant list of numbers."""

    inputs = ((2, 3),)

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(2)])
        self.powers = [1, 2]

    def forward(self, x):
        return sum(w * x**p for w, p in zip(self.weights, self.powers, strict=True))


class Norm(nn.LayerNorm):
    """A layer of torch with another forward."""

    inputs = ((2, 3, 4, 4),)

    def __init__(self, normalized_shape=3):
        super().__init__(normalized_shape)

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Block(nn.Module):
    """A block that others are built of; no case of its own."""

    def __init__(self, width, drop):
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, width, 1)
        self.drop = drop

    def forward(self, x):
        x = F.relu(self.conv(self.norm(x)), inplace=True)
        return F.dropout(x, p=self.drop, training=self.training)


class Stages(nn.Module):
    """Blocks in a loop, a method that builds layers, a constructor inherited by Sequential's subclass."""

    inputs = ((2, 4, 4, 4),)

    def __init__(self, depths=(1, 2), block=Block):
        super().__init__()
        self.stages = nn.ModuleList([self._make(block, depth) for depth in depths])
        self.head = Head(4, 3)

    def _make(self, block, depth, width=4):
        return nn.Sequential(*(block(width, 0.0) for _ in range(depth)))

    def forward(self, x):
        outputs = []
        for stage in self.stages:
            x = x + stage(x)
            outputs.append(x.flatten(2).max(dim=2)[0])
        return self.head(torch.stack(outputs).mean(0)), {"x": x[:, ::2]}


def drop_path(x: Tensor, rate: float, training: bool = False):
    """Zeroes whole rows, by a function."""
    if rate == 0.0 or not training:
        return x
    kept = torch.empty((x.shape[0],) + (1,) * (x.ndim - 1), dtype=x.dtype, device=x.device)
    kept = kept.bernoulli_(1 - rate)
    kept.div_(1 - rate)
    return x * kept


class DropPath(nn.Module):
    """Draws in a function that it calls; no case of its own."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        return drop_path(x, self.rate, self.training)


class Halves(nn.Module):
    """Draws, and has no constructor; no case of its own."""

    def forward(self, x):
        return F.dropout(x, training=self.training)


class Draws(nn.Module):
    """Random numbers in a user's own function, and in functions of torch."""

    inputs = ((6, 4),)

    def __init__(self, rate=0.4):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.path = DropPath(rate)
        self.drop = Halves()

    def forward(self, x):
        x = x + self.path(self.layer(x))
        if self.training:
            chance = torch.full_like(x, 0.9)
            x = x * torch.bernoulli(chance)
        return self.drop(x)


class Never(nn.Module):
    def forward(self, x):
        return x.exp()


class Partly(nn.Module):
    """Comments, and lines that do not run."""

    inputs = ((2, 3),)

    def __init__(self, rate=0.5, block=Never):
        super().__init__()
        # of the layer
        self.layer = nn.Linear(3, 3)  # behind it
        nn.init.zeros_(self.layer.bias)

        # a heading

        # of what is left out
        nn.init.zeros_(self.layer.weight)
        self.extra = block() if rate > 1 else None
        self.rate = rate  # of the rate

    def forward(self, x):
        if x.shape[0] > 100:
            x = F.dropout(x, self.rate, self.training)
        return self.layer(x)


class Stacked(nn.Module):
    """As many arrays in a stack as an array has rows, so that a wrong axis has the right shape."""

    inputs = ((2, 3),)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return torch.stack([self.layer(x), x]).mean(0)


class Head(nn.Sequential):
    """A Sequential with a constructor."""

    def __init__(self, width, classes):
        super().__init__(nn.Linear(width, width), nn.Hardswish(inplace=True), nn.Linear(width, classes))


def shifted(x: Tensor, by: Tensor):
    """Changes its argument."""
    x[:, 1:] += by
    return x


def shifted_copy(x: Tensor, by: Tensor):
    """Leaves its argument as it is."""
    x = x.clone()
    x[:, 1:] += by
    return x


class Effects(nn.Module):
    """A function that changes its argument, a list that a function changes, parts of a tensor."""

    inputs = ((2, 5, 4),)

    def __init__(self, steps=(0, 1)):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.steps = [*steps]
        self.scale: nn.Parameter | None = None
        if steps:
            self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        first, rest = torch.tensor_split(self.layer(x), indices=(1,), dim=1)
        rest = rest.clone()
        shifted(rest, first)
        shifted_copy(rest, first)
        steps = self.steps.copy()
        steps[0] = 2
        if self.scale is not None:
            rest = rest * self.scale
        rows, columns = torch.meshgrid([torch.arange(4, dtype=x.dtype)] * 2, indexing="ij")
        rest = rest * (rows - 2 * columns) + torch.ones(*self.steps[1:], dtype=x.dtype)
        return rest * sum(steps), torch.tensor_split(rest, 2, dim=2)[1]


class Parts(nn.Module):
    """Layers whose names are not in the order of the alphabet; no case of its own."""

    def __init__(self, width):
        super().__init__()
        self.second = nn.Linear(width, width)
        self.first = nn.Tanh()
        self.unused = nn.Linear(width, width)

    def forward(self, x):
        return self.unused(self.first(self.second(x)))


class Getter(nn.ModuleDict):
    """Takes another module's children, and gives their outputs by name; no case of its own."""

    def __init__(self, model, names):
        kept = {}
        for name, child in model.named_children():
            kept[name] = child
            if name == list(names)[-1]:
                break
        super().__init__(kept)
        self.names_of = {str(name): str(said) for name, said in names.items()}

    def forward(self, x):
        found = {}
        for name, child in self.items():
            x = child(x)
            if name in self.names_of:
                found[self.names_of[name]] = x
        return found


@dataclass
class Plan:
    """What a module is built by."""

    width: int = 4


class Taps(nn.Module):
    """The children of a module, and a dict as an attribute."""

    inputs = ((3, 4),)

    def __init__(self, body=None, width=4):
        super().__init__()
        self.body = (
            Getter(Parts(Plan(width).width), {"second": "low", "first": "deep"}) if body is None else body
        )
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        features = self.body(x)
        return {"out": self.head(features["deep"]), **features}


def tapped(parts: Parts, width):
    """Takes a module apart, so that only this function can say what it makes."""
    body = nn.Sequential(parts.second, parts.first)
    return Taps(Getter(body, {"0": "low", "1": "deep"}), width)


class Shared(nn.Module):
    """A module in two places, of which the later one comes first in the alphabet."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.inner = nn.ModuleList([self.shared, nn.Linear(4, 4)])

    def forward(self, x):
        for layer in self.inner:
            x = torch.tanh(layer(x))
        return self.shared(x)


class Constants(nn.Module):
    """Arrays that are not kept with the weights, numbers taken from one, a set, a device."""

    inputs = ((3, 5),)

    def __init__(self, width=5, scale=0.5):
        super().__init__()
        self.register_buffer("steps", torch.arange(width, dtype=torch.float32), persistent=False)
        self.table = torch.linspace(0, 1, width)
        self.halves = [x / 2 for x in torch.arange(2).tolist()]
        self.names = set()
        self.layer = nn.Linear(width, width)
        self.gain = (
            nn.Parameter(torch.full((width,), scale))
            if scale
            else None
        )  # fmt: skip

    def forward(self, x):
        device = x.device
        y = torch.ones(5, device=device) if x.device == self.steps.device else self.steps
        x = self.layer(x + y) * self.gain + self.table * self.steps
        return torch.nn.functional.softmax(x, dim=-1, dtype=torch.float32) * sum(self.halves)


class Waves(nn.Module):
    """Tables whose last digit in float32 is that of a library's sine."""

    inputs = ((3, 64),)

    def __init__(self, width=64):
        super().__init__()
        rates = 1 / 10000 ** (torch.arange(width) / (width - 1))
        self.table = torch.sin(7 * rates).type(torch.float32)
        self.register_buffer("rates", rates, persistent=False)
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return self.layer(x + self.table) * self.rates.cos()


class Chance(nn.Module):
    """A layer that is left out by chance, which is never here."""

    inputs = ((3, 4),)

    def __init__(self, layerdrop=0.0):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.layerdrop = layerdrop

    def forward(self, x):
        for layer in self.layers:
            if self.training:
                probability = torch.rand([])
                if probability < self.layerdrop:
                    continue
            x = layer(x)
        return x


class Decides(nn.Module):
    """Control flow on data."""

    holes = ("x.sum() > 0",)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        if x.sum() > 0:
            x = -x
        return self.layer(x)
