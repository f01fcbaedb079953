"""What modules keep between calls, and could compute anew: tables of shapes. The last ones do not."""

import functools

import torch
from torch import nn


def exists(value):
    return value is not None


class Contexts(nn.Module):
    """A table that is set inside of a context."""

    inputs = ((2, 3, 4),)

    def __init__(self, width=4):
        super().__init__()
        self.linear, self.table = nn.Linear(width, width), None

    def forward(self, x):
        with torch.no_grad():
            self.table = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        return self.linear(x) * self.shifted()

    def shifted(self):
        return self.table + 1


class Guarded(nn.Module):
    """A table for one length, which a method reads that the call does not give it to."""

    inputs = ((2, 3, 4),)

    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("distances", torch.zeros(1, 1), persistent=False)

    def forward(self, x):
        length = x.shape[1]
        if self.distances is None or self.distances.shape[1] != length:
            self.distances = self.make_distances(length)
        return self.mixed(self.linear(x), 0.5)

    def mixed(self, x, scale=1.0):
        weights = (scale * self.distances).softmax(-1)
        return self.scaled(weights @ x)

    def scaled(self, x):
        return x / self.distances.sum()

    def make_distances(self, length):
        index = torch.arange(length, dtype=torch.float32)
        return (index[:, None] - index).abs()


class Rotary(nn.Module):
    """Two tables that a method sets, with their length, and that grow."""

    inputs = ((2, 3, 4),)

    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.width = width
        self._length = 0
        self._sines = self._cosines = None

    def _update(self, x):
        length = x.shape[1]
        if length > self._length or self._sines is None:
            self._length = length
            angles = torch.arange(length, dtype=x.dtype)[:, None] / 10 ** torch.arange(
                self.width, dtype=x.dtype
            )
            self._sines, self._cosines = angles.sin(), angles.cos()

    def forward(self, x):
        x = self.linear(x)
        self._update(x)
        length = x.shape[1]
        return x * self._cosines[:length] + x.flip(-1) * self._sines[:length]


class Early(nn.Module):
    """A method that returns at once, where its table is long enough."""

    inputs = ((2, 3, 4),)

    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.angles = None

    def update(self, x):
        length = x.shape[1]
        if self.angles is not None and length <= len(self.angles):
            return
        self.angles = torch.arange(length, dtype=x.dtype)[:, None] / 10

    def forward(self, x):
        self.update(x)
        return self.linear(x) * self.angles[: x.shape[1]].sin()


class Returned(nn.Module):
    """A buffer that is registered in the call, or returned at once, and a choice between old and new."""

    inputs = ((2, 3, 4),)

    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("mask", None, persistent=False)
        self.scales = None

    def get_mask(self, length):
        if exists(self.mask) and self.mask.shape[-1] >= length:
            return self.mask[:length, :length]
        mask = torch.ones((length, length), dtype=torch.bool).triu(1)
        self.register_buffer("mask", mask, persistent=False)
        return mask

    def forward(self, x):
        scores = x @ x.transpose(1, 2)
        scores = scores.masked_fill(self.get_mask(x.shape[1]), -1e9)
        self.scales = self.scales if self.scales is not None else torch.arange(4, dtype=x.dtype)
        return self.linear(scores.softmax(-1) @ x) * self.scales


class Keyed(nn.Module):
    """Dicts by length, and Python's own caches."""

    inputs = ((2, 3, 4),)

    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.tables, self.ramps = {}, {}

    def table(self, length):
        if length in self.tables:
            return self.tables[length]
        table = torch.arange(length, dtype=torch.float32)[:, None]
        self.tables[length] = table
        return table

    def ramp(self, length):
        ramp = self.ramps.get(length)
        if ramp is None:
            ramp = torch.arange(length, dtype=torch.float32).square()[:, None]
            self.ramps[length] = ramp
        return ramp

    @functools.cached_property
    def offsets(self):
        return torch.arange(4, dtype=torch.float32)

    @functools.lru_cache(maxsize=8)  # noqa: B019
    def steps(self, length):
        return torch.arange(length, dtype=torch.float32).sqrt()[:, None]

    def forward(self, x):
        length = x.shape[1]
        x = self.linear(x) + self.table(length) * self.ramp(length) + self.offsets
        return x * self.steps(length) + evens(length)


@functools.cache
def evens(length):
    return 2 * torch.arange(length, dtype=torch.float32)[:, None]


class Shown(nn.Module):
    """Arrays that the call leaves for the user, and that it never reads."""

    inputs = ((2, 3, 4),)

    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.attention = None
        self.scores: torch.Tensor | None = None

    def forward(self, x):
        scores = self.linear(x) @ x.transpose(1, 2)
        self.scores = scores
        attention = scores.softmax(-1)
        self.attention = attention.detach()
        return attention @ x


class ReadElsewhere(nn.Module):
    """An array that a part leaves and the module around it reads, and one under two names."""

    inputs = ((2, 3, 4),)

    def __init__(self, width=4):
        super().__init__()
        self.inner = Inner(width)
        self.doubled = None

    def forward(self, x):
        y = self.inner(x)
        self.doubled = self.twice = y + y
        return y * self.inner.total


class Inner(nn.Linear):
    def __init__(self, width):
        super().__init__(width, width)
        self.total = None

    def forward(self, x):
        self.total = x.sum()
        return nn.functional.linear(x, self.weight, self.bias)


class FromTheFirst(nn.Module):
    """It starts from the first call's numbers, and keeps them."""

    inputs = ((2, 3, 4),)

    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.mean = None

    def forward(self, x):
        if self.mean is None:
            self.mean = x.mean((0, 1))
        return self.linear(x - self.mean)


class Longest(nn.Module):
    """Its table depends on the longest input of all calls."""

    inputs = ((2, 4, 3, 3),)

    def __init__(self, width=4):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 1)
        self.longest, self.table = 0, None

    def forward(self, x):
        if x.shape[-1] > self.longest:
            self.longest = x.shape[-1]
            self.table = torch.arange(self.longest, dtype=torch.float32) / self.longest
        return self.conv(x) * self.table[: x.shape[-1]]


class Chosen(nn.Module):
    """Whether it computes the table depends on more than the memory."""

    inputs = ((2, 3, 4),)

    def __init__(self, width=4, fixed=False, device=None, dtype=None):
        dd = {"device": device, "dtype": dtype}
        super().__init__()
        self.linear = nn.Linear(width, width, **dd)
        self.fixed, self.table = fixed, None

    def forward(self, x):
        if self.table is None and not self.fixed:
            self.table = torch.arange(4, dtype=x.dtype)
        return self.linear(x) + self.table


class Partly(nn.Module):
    """Some calls read what the constructor or an earlier call has set."""

    inputs = ((2, 3, 4),)

    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.scale = torch.ones(width)

    def forward(self, x):
        if x.ndim == 3:
            self.scale = torch.ones(x.shape[-1])
        return self.linear(x) * self.scale


class Reversible(nn.Module):
    """Statistics that one call of a part sets, and another call of it reads, as of time series."""

    inputs = ((2, 5, 4),)

    def __init__(self, width=4):
        super().__init__()
        self.norm, self.linear = Statistics(width), nn.Linear(width, width)
        self.drop = Attended(width)
        self.calls, self.seen = 0, 0

    def forward(self, x):
        self.calls += 1
        self.seen = self.seen + len(x)
        x = self.linear(self.norm(x, "norm"))
        return self.norm(self.drop(x), "denorm") + self.drop.weights.sum(-1, keepdim=True)


class Statistics(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.mean = None

    def forward(self, x, mode):
        if mode == "norm":
            self._measure(x)
            return (x - self.mean) / self.deviation * self.scale
        return x / self.scale * self.deviation + self.mean

    def _measure(self, x):
        self.mean = x.mean(1, keepdim=True).detach()
        self.deviation = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5).detach()


class Attended(nn.Module):
    """Weights that the module around it reads, after dropout."""

    def __init__(self, width):
        super().__init__()
        self.linear, self.drop = nn.Linear(width, width), nn.Dropout(0.5)

    def forward(self, x):
        self.weights = self.drop((self.linear(x) @ x.transpose(1, 2)).softmax(-1))
        return self.weights @ x


class FromTraining(nn.Module):
    """Evaluation reads what a call in training has kept."""

    inputs = ((2, 3, 4),)

    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.mean = None

    def forward(self, x):
        if self.training:
            self.mean = x.mean((0, 1))
        return self.linear(x) if self.mean is None else self.linear(x - self.mean)


class Warms(nn.Module):
    """A count that a later call reads."""

    inputs = ((2, 3, 4),)

    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * min(1.0, self.calls / 100)
