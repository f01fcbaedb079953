"""Recurrent layers. A Flax cell merges torch's two biases; jaxpar.nn's layers have both, and its names."""

import jax.numpy as jnp
from flax import nnx
from torch import nn

import jaxpar

from ..case import Case, normal

I, H = 4, 3
SEQUENCE = (normal(2, 5, I),)


class Outputs(nn.Module):
    """The outputs and the last state of a recurrent layer."""

    def __init__(self, layer):
        super().__init__()
        self.rnn = layer

    def forward(self, x):
        return self.rnn(x)


class FlaxOutputs(nnx.Module):
    def __init__(self, layer):
        self.rnn = layer

    def __call__(self, x):
        return self.rnn(x)


def recurrent(kind, name="", **options):
    options |= {"batch_first": True}
    return Case(
        kind + name,
        lambda: Outputs(getattr(nn, kind)(I, H, **options)),
        lambda rngs: FlaxOutputs(getattr(jaxpar.nn, kind)(I, H, **options, rngs=rngs)),
        SEQUENCE,
    )


class Cell(nn.Module):
    """One step from zeros."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(I, H)

    def forward(self, x):
        return self.cell(x)[0]


class FlaxCell(nnx.Module):
    def __init__(self, rngs):
        self.cell = nnx.OptimizedLSTMCell(I, H, rngs=rngs)

    def __call__(self, x):
        zeros = jnp.zeros((len(x), H), x.dtype)
        return self.cell((zeros, zeros), x)[1]


CASES = [
    recurrent("RNN"),
    recurrent("RNN", ", relu", nonlinearity="relu"),
    recurrent("LSTM"),
    recurrent("LSTM", ", 2 layers", num_layers=2),
    recurrent("LSTM", ", both directions", bidirectional=True),
    recurrent("LSTM", ", projection", proj_size=2),
    recurrent("LSTM", " without bias", bias=False),
    recurrent("GRU"),
    recurrent("GRU", ", 2 layers, both directions", num_layers=2, bidirectional=True),
    Case("LSTMCell and Flax's OptimizedLSTMCell", Cell, FlaxCell, (normal(2, I),)),
]
