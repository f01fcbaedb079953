"""A multi-layer perceptron: the smallest port. A list of layers has the same paths in all three."""

import itertools

import flax.linen
from flax import nnx
from torch import nn

from ..case import Case, normal


class MLP(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise(widths))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)


class FlaxMLP(nnx.Module):
    def __init__(self, widths, rngs):
        self.layers = nnx.List([nnx.Linear(i, o, rngs=rngs) for i, o in itertools.pairwise(widths)])

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


class LinenMLP(flax.linen.Module):
    """Linen knows the inputs' widths only when it is called; it names a list's modules layers_0, layers_1."""

    widths: tuple[int, ...]

    def setup(self):
        self.layers = [flax.linen.Dense(o) for o in self.widths[1:]]

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


def mlp(widths=(784, 256, 128, 10), rows=32):
    return Case("MLP", lambda: MLP(widths), lambda rngs: FlaxMLP(widths, rngs), (normal(rows, widths[0]),))


def mlp_linen(widths=(784, 256, 128, 10), rows=32):
    return Case("MLP, Linen", lambda: MLP(widths), lambda rngs: LinenMLP(widths), (normal(rows, widths[0]),))
