"""torch modules of one construct of Python or torch each. Every class with `inputs` is a case."""

import functools

import torch
import torch.nn.functional as F
from torch import nn


class Operators(nn.Module):
    """Calls that become operators, in places where these need parentheses."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        z = 1 / x.mul(2) + y.sub(x) * 3 - x.sub(y.add(1))
        return z + x.neg() ** 2, 2 ** x.add(1), x.add(1) @ y.t().mul(2), -x.pow(2)


class Pairs(nn.Module):
    """Values and places."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        values, places = y.max(dim=1)
        _, least = torch.min(x, 1)
        best, at = torch.topk(y, 2, dim=1)
        ordered, order = torch.sort(y, dim=1, descending=True)
        return values, places, least, best, at, ordered, order, x.max(), torch.max(x, y), y.sort(-1).values


class Drops(nn.Module):
    """Dropout by a function, of activations and of attention's weights."""

    inputs = ((3, 2, 5, 4),)

    def __init__(self, rate=0.4):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.rate = rate

    def forward(self, x):
        x = F.dropout(x, self.rate, training=self.training)
        y = F.dropout(self.layer(x), p=0.2)
        rate = self.rate if self.training else 0.0
        return F.scaled_dot_product_attention(x, y, y, dropout_p=rate)


class Noise(nn.Module):
    """Noise that a method draws, as in a variational autoencoder."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(4, 2)
        self.spread = nn.Linear(4, 2)

    def drawn(self, mean, spread):
        std = torch.exp(0.5 * spread)
        return mean + torch.randn_like(std) * std

    def forward(self, x):
        mean, spread = self.mean(x), self.spread(x)
        return self.drawn(mean, spread) if self.training else mean, spread


def dropped_rows(x, rate):
    kept = 1 - rate + torch.rand([x.shape[0], 1], dtype=x.dtype, device=x.device)
    return x / (1 - rate) * torch.floor(kept)


class Fresh(nn.Module):
    """Numbers of a shape, which a function and a method draw; and one in the constructor."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.start = nn.Parameter(torch.rand(4))
        widths, counts = torch.unique(torch.tensor([8, 4, 4]), return_counts=True)
        self.width, self.kinds = int(widths.max().item()), len(torch.unique(widths))
        alone = counts < 2
        chosen = torch.where(alone)[0] + alone.nonzero() + widths.masked_select(alone)
        self.counts = chosen[0].tolist()

    def forward(self, x):
        y = self.linear(x) * self.width * self.kinds * self.counts[0] + self.start
        if self.training:
            y = dropped_rows(y, 0.5) + torch.randn(3, 4) * x + torch.rand_like(x) * torch.rand(x.shape[1])
        return y


class OptionalBias(nn.Module):
    """A function that is given a bias or None."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4, bias=False)

    def project(self, x, weight, bias):
        return F.linear(x, weight, bias)

    def forward(self, x):
        x = self.project(x, self.first.weight, self.first.bias)
        x = self.project(x, self.second.weight, self.second.bias)
        return F.linear(x, self.second.weight, bias=self.second.bias) * 2


class Still(nn.Module):
    """Gradients that stop, a running mean, checks of data."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    @torch.no_grad()
    def scaled(self, x: "Tensor", device: "torch.device" = None) -> "torch.Tensor":  # noqa: F821
        x = x * 3
        return x * 2, self.layer.weight.sum(0)

    def forward(self, x):
        y = self.layer(x)
        assert (y == y).all(), "numbers"
        torch._assert_async((y == y).all())
        torch._assert(y.ndim == x.ndim, "axes")
        if torch.isinf(y).any():
            raise ValueError("infinite")
        with torch.no_grad():
            rows, _ = y.shape
            z = y * rows
            if self.training:
                self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
        a, b = self.scaled(y)
        return y * z - self.mean + y * a + b


class Base(nn.Module):
    """Without a mode, for what derives from it."""

    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return self.layer(x)


class Twice:
    """A mixin with a static method, a class method and a property."""

    factor = 2

    @staticmethod
    def added(x, y):
        return x + y

    @classmethod
    def times(cls, x):
        return x * cls.factor

    @property
    def width(self):
        return self.layer.in_features


class Derived(Twice, Base):
    """Calls what it inherits, and is the first to read its mode."""

    inputs = ((3, 4),)

    def __init__(self, width=4):
        super().__init__(width)
        self.powers = {"one": 1, "two": 2}

    def forward(self, x):
        y = super().forward(x)
        y = self.times(self.added(y, x)) / self.width
        z = sum(y**power for power in self.powers.values() if power > 1)
        return z + 1 if self.training else z, {name: y * power for name, power in self.powers.items()}


class Places(nn.Module):
    """Indices of all kinds, and writes to them."""

    inputs = ((3, 4), torch.tensor([2, 0]))

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, rows):
        y = self.layer(x)
        y[x > 0] = 0.5
        y[y < 0] *= 2
        keep = [0, 2]
        z = y[rows, :]
        z[torch.arange(2)] += 1.0
        ones = torch.zeros_like(x)
        ones[[1, 1]] += 1.0
        return y + ones, y[:, [0, 2]], y[keep], y[:, None, ..., 1:], y[..., -1], z


class Weights(nn.Module):
    """Weights that are computed, shared, kept in lists and dicts; buffers of all kinds."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.second = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Linear(4, 4)
        self.outer.weight = self.inner.weight
        self.scales = nn.ParameterDict({"a": nn.Parameter(torch.ones(4))})
        self.shifts = nn.ParameterList()
        for _ in range(2):
            self.shifts.append(nn.Parameter(torch.zeros(4)))
        self.register_buffer("steps", torch.tensor(0, dtype=torch.long))
        self.register_buffer("nothing", None)

    def forward(self, x):
        if self.training:
            self.steps += 1
        x = self.outer(self.inner(self.second(self.first(x)))) * self.scales["a"]
        for shift in self.shifts:
            x = x + shift
        return x * self.steps if self.nothing is None else self.nothing


class Functions(nn.Module):
    """Functions of a tensor, with the arguments that mean something else in NumPy."""

    inputs = ((3, 4), torch.tensor([[0, 1], [2, 0], [1, 3]]))

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, places):
        y = self.layer(x)
        z = torch.zeros_like(y)
        z.scatter_(1, places, 1.0)
        spread = y.std(0, unbiased=False), y.var(1, keepdim=True), torch.var(y, dim=1, correction=0)
        whole = x.trunc(), torch.fmod(x, 2), torch.remainder(x, -2), x.detach() // 0.3, places % -2
        return z * y, spread, whole, x.argsort(1), y.gather(1, places), torch.arange(3, dtype=x.dtype)


class TiedTables(nn.Module):
    """A table of words that is the weight of the last layer too, whichever of the two it came from."""

    inputs = (torch.tensor([[1, 2, 2], [0, 6, 1]]),)

    def __init__(self, words=7, width=4):
        super().__init__()
        self.encoder = nn.Embedding(words, width, padding_idx=0)
        self.decoder = nn.Linear(width, words, bias=False)
        self.decoder.weight = self.encoder.weight
        self.body = nn.ModuleDict({"table": nn.Embedding(words, width)})
        self.head = nn.Linear(width, words)
        self.body["table"].weight = self.head.weight

    def forward(self, places):
        return self.decoder(self.encoder(places)) + self.head(self.body["table"](places))


class OlderNorm(nn.Module):
    """Weight norm as it was before parametrizations, as one length for each output and as one for all."""

    inputs = ((2, 3, 5),)

    def __init__(self):
        super().__init__()
        self.conv = nn.utils.weight_norm(nn.Conv1d(3, 4, 2), name="weight")
        self.linear = nn.utils.weight_norm(nn.Linear(4, 2), dim=None)

    def forward(self, x):
        return self.linear(self.conv(x))


class Sums(nn.Module):
    """Rows that are added where an index says, two of them to the same."""

    inputs = ((3, 4), torch.tensor([0, 2, 2]))

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, to):
        rows = torch.zeros(5, 4).index_add(0, to, self.layer(x))
        rows.index_add_(0, to, x)
        return rows


class Columns(nn.Module):
    inputs = ((3, 4), torch.tensor([0, 2, 2]))

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, to):
        y = self.layer(x)
        return torch.zeros(3, 4).index_add(1, to, y) + x.index_add(-1, to, y)


class InstanceNorms(nn.Module):
    """Every example by its own statistics, without a layer."""

    inputs = ((3, 4, 5),)

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))

    def forward(self, x):
        return F.instance_norm(x) - F.instance_norm(x, None, None, self.weight, eps=1e-2)


class Rotary(nn.Module):
    """Positions as angles of complex numbers."""

    inputs = ((2, 3, 8),)

    def __init__(self, width=8):
        super().__init__()
        self.query = nn.Linear(width, width)
        angles = torch.outer(torch.arange(16), 1 / 100 ** (torch.arange(0, width, 2).float() / width))
        self.turns = torch.polar(torch.ones_like(angles), angles)

    def forward(self, x):
        rows = x.shape[1]
        query = torch.view_as_complex(self.query(x).reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(query * self.turns[:rows]).flatten(2)


class Counts(nn.Module):
    """Of weights; lengths and distances; what torch has and what not."""

    inputs = ((3, 4),)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.fused = hasattr(F, "scaled_dot_product_attention") and not hasattr(torch, "no_such_thing")
        self.size = sum(weight.numel() for weight in self.parameters())
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("factor", torch.full((4,), 1.5))

    def forward(self, x):
        y = self.layer(x.to(next(self.parameters()).dtype)) / self.size
        if self.fused:
            y = y / y.norm(dim=-1, keepdim=True) + x.norm(2, 0) / torch.norm(x)
        z = self.norm(x).to(next(self.buffers()).dtype) * sum(b.sum() for b in self.buffers() if b.ndim)
        return y + z, torch.cdist(x, y + 2), sum(weight.square().sum() for weight in self.parameters())


class Idioms(nn.Module):
    """Blocks from a function in the constructor, a layer by its name, and calls that mean nothing in JAX."""

    inputs = ((4, 3, 6),)

    def __init__(self, width=4, activation="Tanh"):
        super().__init__()

        def block(features, out):
            return nn.Sequential(nn.Conv1d(features, out, 3, padding=1), nn.BatchNorm1d(out))

        self.body = nn.Sequential(block(3, width), getattr(nn, activation)(), block(width, width))
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.norm = nn.utils.parametrizations.weight_norm(nn.Linear(width, 2))
        self.norm.weight.data.normal_(0, 0.01)
        self.shift = nn.Parameter(torch.zeros(2).fill_(0.2))

    def forward(self, x):
        self.lstm.flatten_parameters()
        return self.norm(self.lstm(self.body(x).mT)[0]) + self.shift


def without_private(constructor):
    @functools.wraps(constructor)
    def wrapper(self, *args, **kwargs):
        kwargs = {name: value for name, value in kwargs.items() if name[0] != "_"}
        return constructor(self, *args, **kwargs)

    return wrapper


class LowRank(nn.Linear):
    """A layer of torch's with more weights than torch knows."""

    def __init__(self, width, out, rank=2):
        super().__init__(width, out)
        self.down, self.up = (nn.Parameter(torch.randn(*shape)) for shape in ((rank, width), (out, rank)))
        self.scale = 1 / rank

    def forward(self, x):
        return super().forward(x) + x @ self.down.T @ self.up.T * self.scale


class Standardised(nn.Conv1d):
    """A convolution whose weight is normalised at every call."""

    def __init__(self, in_channels, out_channels, kernel_size, device=None, dtype=None):
        super().__init__(in_channels, out_channels, kernel_size, device=device, dtype=dtype)

    def forward(self, x):
        var, mean = torch.var_mean(self.weight, dim=[1, 2], keepdim=True, unbiased=False)
        return F.conv1d(x, (self.weight - mean) / torch.sqrt(var + 1e-5), self.bias, self.stride[0])


def head_of(kind, width):
    return nn.ReLU6() if kind == "clipped" else nn.ReLU(), nn.Linear(2, width)


class Adapted(nn.Module):
    """A decorated constructor, and a text that a function's module replaces."""

    inputs = ((3, 5),)

    @without_private
    def __init__(self, head="clipped"):
        super().__init__()
        self.linear = LowRank(5, 2)
        self.head = head
        self.head, self.out = head_of(head, 3)

    def forward(self, x):
        return self.out(self.head(self.linear(x)))


class Normalised(nn.Module):
    inputs = ((3, 4, 6),)

    def __init__(self):
        super().__init__()
        self.conv = Standardised(4, 3, 2)

    def forward(self, x):
        return self.conv(x)


class Bare(nn.Module):
    def forward(self, x):
        return x.relu()


class BareDrops(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.3, self.training)


def bare():
    return Bare()
