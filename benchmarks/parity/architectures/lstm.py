"""A language model of LSTM layers (Zaremba et al. 2014): embedding, two layers, scores of the next token."""

import optax
from flax import nnx
from torch import nn
from torch.nn import functional as F

import jaxpar

from ..case import Case, integers


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, width, depth):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, depth, batch_first=True)
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x, _ = self.lstm(self.embedding(tokens))
        return self.decoder(x)


class FlaxLanguageModel(nnx.Module):
    def __init__(self, vocabulary, width, depth, rngs):
        self.embedding = nnx.Embed(vocabulary, width, rngs=rngs)
        self.lstm = jaxpar.nn.LSTM(width, width, depth, batch_first=True, rngs=rngs)
        self.decoder = nnx.Linear(width, vocabulary, rngs=rngs)

    def __call__(self, tokens):
        x, _ = self.lstm(self.embedding(tokens))
        return self.decoder(x)


def lstm(vocabulary=8192, width=256, depth=2, rows=4, steps=35):
    return Case(
        "LSTM language model",
        lambda: LanguageModel(vocabulary, width, depth),
        lambda rngs: FlaxLanguageModel(vocabulary, width, depth, rngs),
        (integers(vocabulary, rows, steps),),
        (integers(vocabulary, rows, steps),),
        (
            lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()),
            lambda y, t: optax.softmax_cross_entropy_with_integer_labels(y, t).mean(),
        ),
    )
