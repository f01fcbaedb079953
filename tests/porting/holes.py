"""torch modules with what has no counterpart. Each class has its `holes`: the lines that must be named."""

import math

import torch
from torch import nn
from torch.nn.utils import parametrize

count = 0


class Layer(nn.Module):
    """What the others derive from."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.seen = []
        self.calls = 0


class AnotherName(Layer):
    """A write that another name sees."""

    holes = ("y += 1: it changes z as well",)

    def forward(self, x):
        y = self.layer(x)
        z = y
        y += 1
        return z


class View(Layer):
    """A write into a part that is a tensor of its own."""

    holes = ("v += 1: it changes y as well",)

    def forward(self, x):
        y = self.layer(x)
        v = y[0]
        v += 1
        return y


class InList(Layer):
    """A write that is seen in a list."""

    holes = ("y += 1: it changes outputs as well",)

    def forward(self, x):
        y = self.layer(x)
        outputs = [y]
        y += 1
        return torch.stack(outputs)


class ByLayer(Layer):
    """A layer that works in place, in a list of results."""

    holes = ("z = [nn.functional.relu(y, inplace=True) for _ in range(2)]: it changes y as well",)

    def forward(self, x):
        y = self.layer(x)
        z = [nn.functional.relu(y, inplace=True) for _ in range(2)]
        return y + z[0]


def doubled(x):
    """Changes what it is given."""
    x.mul_(2)


class ByFunction(Layer):
    """A function that works in place."""

    holes = ("doubled(y): it changes its argument x in place",)

    def forward(self, x):
        y = self.layer(x)
        doubled(y)
        return y


class Swapped(Layer):
    """Two writes at once."""

    holes = ("y[0], y[1] = x[1], x[0]: it changes a part",)

    def forward(self, x):
        y = self.layer(x)
        y[0], y[1] = x[1], x[0]
        return y


class Numbers(Layer):
    """Python takes numbers out of tensors."""

    holes = (
        "int(y.sum()): it takes a number",
        "math.sqrt(x.abs().sum()): it takes a number",
        "max(x.sum(), y.sum()): it takes a number",
        "0 < x.sum() < 5 or x.sum() in (1, 2): it decides by data",
        "y.sum() in (1, 2): it decides by data",
        "y if x.sum() > 0 else x: it decides by data",
        "y[y > 0]: its shape depends on data",
        "y[x > 0] = x[x > 0]: its shape depends on data",
        "y[: x.argmax()]: its shape depends on data",
    )

    def forward(self, x):
        y = self.layer(x)
        y = y * int(y.sum()) * math.sqrt(x.abs().sum()) * max(x.sum(), y.sum())
        if 0 < x.sum() < 5 or x.sum() in (1, 2):
            y = y + 1
        while y.sum() in (1, 2):
            y = y + 1
        y = y if x.sum() > 0 else x
        y = y + y[y > 0].sum()
        y[x > 0] = x[x > 0]
        return y[: x.argmax()]


class Rounds:
    """An object that is no module, as a processor of attention."""

    def __call__(self, layer, x):
        return layer(x) * int(x.sum())


class Processed(Layer):
    """A method of a plain class, which the call runs."""

    holes = ("int(x.sum()): it takes a number",)

    def __init__(self):
        super().__init__()
        self.processor = Rounds()

    def forward(self, x):
        return self.processor(self.layer, x)


class Remembers(Layer):
    """What stays behind after a call."""

    holes = (
        "self.seen.append(x): it keeps an array",
        "self.calls += 1: it counts in the module",
        "global count: it changes a variable of the file",
    )

    def forward(self, x):
        global count
        count += 1
        self.calls += 1
        self.seen.append(x)
        return self.layer(x) * self.calls


class ChangesItsWeight(Layer):
    """A weight that each call normalises, as in EDM2."""

    holes = ("self.layer.weight.copy_(self.layer.weight / 2): the call changes a weight",)

    def forward(self, x):
        with torch.no_grad():
            self.layer.weight.copy_(self.layer.weight / 2)
        return self.layer(x)


class Random(Layer):
    """Random numbers beside dropout."""

    holes = (
        "torch.randint(5, (2, 3)): JAX draws other random numbers",
        "torch.rand([]): JAX draws other random numbers",
        "torch.unique(x): its shape depends on data",
        "torch.where(x > 0): its shape depends on data",
        "x.nonzero(): its shape depends on data",
        "x.masked_select(x > 0): its shape depends on data",
        "torch.zeros(2, 3).normal_(): it draws random numbers, by a stream",
    )

    def forward(self, x):
        return (
            self.layer(x)
            + torch.randint(5, (2, 3))
            + torch.rand([])
            + torch.unique(x).sum()
            + len(torch.where(x > 0)) * len(x.nonzero()) * x.masked_select(x > 0).sum()
            + torch.zeros(2, 3).normal_()
        )


class Frozen(Layer):
    """Weights without gradients in a call, and a layer that stays in one mode."""

    holes = (
        "self.layer.bias.requires_grad_(False): it is not clear which weights are frozen here",
        "super().train(mode): Flax's modules have another train",
        "x.is_leaf: JAX's arrays have no is_leaf",
        'x.type("torch.FloatTensor"): it is not clear',
    )

    def train(self, mode=True):
        super().train(mode)
        self.layer.eval()
        return self

    def forward(self, x):
        self.layer.bias.requires_grad_(False)
        return self.layer(x), x.is_leaf, x.type("torch.FloatTensor")


class ChangedUnderNoGrad(Layer):
    """To torch a change in place is no operation there."""

    holes = ("y += 1: gradients stop here",)

    def forward(self, x):
        y = self.layer(x)
        with torch.no_grad():
            y += 1
        return y


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


class Parametrized(nn.Module):
    """Weights of a layer and of its own that a module computes: torch makes a class for each."""

    holes = (
        'parametrize.register_parametrization(self.layer, "weight", Doubled())',
        'parametrize.register_parametrization(self, "scale", Doubled())',
    )

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3))
        parametrize.register_parametrization(self.layer, "weight", Doubled())
        parametrize.register_parametrization(self, "scale", Doubled())
        self.offset = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.layer(x) * self.scale + self.offset
