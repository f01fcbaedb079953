"""torch modules with habits of notebooks and older tutorials. Every class with `inputs` is a case."""

from collections import OrderedDict
from enum import Enum

import numpy as np
import torch
from torch import nn
from torch.autograd import Variable

USE_CUDA = torch.cuda.is_available()


class Config:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Kind(Enum):
    GATED = "gated"
    PLAIN = "plain"


class StaticNoise(nn.Module):
    """Static methods that draw, called by an instance and by the class."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.mean, self.log = nn.Linear(4, 2), nn.Linear(4, 2)

    @staticmethod
    def drawn(mean, log):
        return StaticNoise.noise(log) * torch.exp(0.5 * log) + mean

    @staticmethod
    def noise(like):
        return torch.randn_like(like)

    @staticmethod
    def halved(x):
        return x / 2

    def forward(self, x):
        mean, log = self.mean(x), self.log(x)
        return self.halved(self.drawn(mean, log)) + self.noise(mean)


class Older(nn.Module):
    """Variables, flags of the machine, and tensors made of others, as before torch 0.4."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        state = Variable(torch.zeros(3, 4))
        if USE_CUDA:
            state = state.cuda()
        rows = torch.arange(end=3, device=Config.device).type(torch.FloatTensor).unsqueeze(1)
        full = torch.autocast("cpu", enabled=False)
        with full:
            state = state + x.new(3, 4).fill_(0.5) * rows.to(Config.device).type_as(x)
        return self.linear(x + state).detach_(), self.linear(state)


class FilledAtOnce(nn.Module):
    """Parameters that are made of a tensor that an initialiser returns, and sizes of NumPy."""

    inputs = ((3, 2, 4),)

    def __init__(self, shape=(2, 4)):
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(4, 4)))
        self.scales = nn.ParameterList([nn.Parameter(nn.init.constant_(torch.empty(4), i)) for i in range(2)])
        self.head = nn.Linear(np.array(shape).prod(), 3)
        self.register_buffer("window", torch.from_numpy(np.hanning(4)).float())

    def forward(self, x):
        for scale in self.scales:
            x = x * self.window + x @ self.weight * scale
        return self.head(x.reshape(len(x), x.shape[1:].numel()))


def set_trained(module, trained):
    for weight in module.parameters():
        weight.requires_grad = trained


class FrozenByHelper(nn.Module):
    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.trunk, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        set_trained(self.trunk, False)

    def forward(self, x):
        return self.head(torch.tanh(self.trunk(x)))


class Matched(nn.Module):
    """Layers and results that `match` chooses, by values, classes and guards."""

    inputs = ((3, 4),)

    def __init__(self, kinds=(Kind.GATED, Kind.PLAIN)):
        super().__init__()
        self.layers = nn.ModuleList()
        for kind in kinds:
            match kind:
                case Kind.GATED:
                    self.layers.append(nn.Sequential(nn.Linear(4, 8), nn.GLU()))
                case Kind.PLAIN:
                    self.layers.append(nn.Linear(4, 4))

    def forward(self, x):
        match self.layers[0], len(self.layers):
            case [nn.Sequential() as first, count] if count > 1:
                x = first(x) / count
                x[:, 0] += 1.0
            case _:
                x = -x
        return self.layers[-1](x)


class Aligned(nn.Module):
    """CTC as a layer and as a function."""

    inputs = ((5, 2, 4),)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.loss = nn.CTCLoss(blank=5, zero_infinity=True)

    def forward(self, x):
        rates = self.linear(x).log_softmax(-1)
        labels = torch.tensor([[1, 2], [3, 3]])
        steps, sizes = torch.tensor([5, 4]), torch.full((2,), 2, dtype=torch.long)
        others = nn.functional.ctc_loss(rates, labels, steps, sizes, reduction="none")
        return self.loss(rates, labels, steps, sizes), others


class Exports:
    def export(self, path):
        return path.parent


class Decides(Exports, nn.Module):
    """Holes: a `match` that decides by data, and a helper that freezes one module and not another."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.trunk, self.head = nn.Linear(4, 4), nn.Linear(4, 4)
        self.gain = 0.1 * nn.init.calculate_gain("relu")
        for module, trained in ((self.trunk, False), (self.head, True)):
            set_each(module, trained)

    def forward(self, x):
        match x[0, 0] > 9:
            case True:
                x = -x
        return self.gain * self.head(self.trunk(x))


def set_each(module, trained):
    for weight in module.parameters():
        weight.requires_grad_(trained)


BLOCKS = {}
GATES: OrderedDict[str, type] = OrderedDict()


def block(name):
    def add(function):
        BLOCKS[name] = function
        return function

    return add


@block("wide")
def wide(width):
    return nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width))


@block("narrow")
def narrow(width):
    return nn.Linear(width, width, bias=False)


@block("halved")
def halved(x):
    return x / 2


def gate(kind):
    GATES[kind.__name__] = kind
    return kind


@gate
class Soft(nn.Module):
    def forward(self, x):
        return x.sigmoid()


class FilledByDecorators(nn.Module):
    """Dicts that decorators fill when the file is imported, read in the constructor and in the call."""

    inputs = ((3, 4),)

    def __init__(self, kinds=("wide", "narrow"), gate="Soft", last="halved"):
        super().__init__()
        self.blocks = nn.ModuleList([BLOCKS[kind](4) for kind in kinds])
        self.gate = GATES.get(gate)()
        self.last = last

    def forward(self, x):
        for layer in self.blocks:
            x = self.gate(layer(x))
        return BLOCKS[self.last](x)


class Windowed(nn.Module):
    """A mask that one block has and another has not, and a device that is a text."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.device = "cpu"
        self.blocks = nn.ModuleList([Masked(shift) for shift in (0, 1)])

    def forward(self, x):
        x = x.to(self.device) * x.new_tensor([1.0, 2.0, 3.0, 4.0], device=self.device)
        for layer in self.blocks:
            x = layer(x)
        return x


class Masked(nn.Module):
    def __init__(self, shift):
        super().__init__()
        mask = torch.arange(4).float() * shift if shift else None
        self.register_buffer("mask", mask)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = self.linear(x)
        return x if self.mask is None else x + self.mask


class Causal(nn.Module):
    """A mask that each call converts, an integer of 33 bits, initial values of a weight that is computed."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Converted(mask) for mask in (None, torch.ones(4, 4).triu(1) > 0)])

    def forward(self, x):
        for layer in self.blocks:
            x = layer(x)
        return x


class Converted(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask = mask
        self.linear = nn.utils.weight_norm(nn.Linear(4, 4))
        self.apply(filled)
        for parameter in self.parameters():
            parameter.requires_grad_(True)
        for parameter in self.linear.parameters():
            parameter.requires_grad = True

    def forward(self, x):
        self.mask = self.mask.to(x.device) if self.mask is not None else None
        scores = self.linear(x)[:, None] * x[..., None]
        if self.mask is not None:
            scores = torch.where(self.mask, torch.ones_like(scores) * (-(2**32) + 1), scores)
        return scores.softmax(-1).sum(1)


def filled(layer):
    if isinstance(layer, nn.Linear):
        layer.weight.data.normal_(0.0, 0.01)  # which weight_norm computes anew


class Started(nn.Module):
    """Layers whose weights the constructor replaces."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.linear.weight = nn.Parameter(torch.eye(4) / 4)
        self.norm = nn.LayerNorm(4)
        self.norm.bias = nn.Parameter(torch.ones(4) * 0.5)

    def forward(self, x):
        return self.norm(self.linear(x))


class Shares(nn.Module):
    """Two weights in one memory, a layer that is frozen in part, and a weight of another shape."""

    def __init__(self, how):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4, bias=how == "memory")
        if how == "memory":
            self.second.weight = nn.Parameter(self.first.weight)
        elif how == "frozen":
            self.first.requires_grad_(False)
            self.first.weight = nn.Parameter(torch.eye(4))
        else:
            self.second.weight = nn.Parameter(torch.ones(5, 4))

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))
