"""A tagger: a GRU in both directions over embedded tokens, scores of a tag for each.

`nnx.GRUCell` has no place for torch's bias b_hn, so no trained torch GRU fits in it; jaxpar.nn.GRU has one.
"""

from flax import nnx
from torch import nn

import jaxpar

from ..case import Case, integers


class Tagger(nn.Module):
    def __init__(self, vocabulary, width, tags):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.gru = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, tags)

    def forward(self, tokens):
        x, _ = self.gru(self.embedding(tokens))
        return self.head(x)


class FlaxTagger(nnx.Module):
    def __init__(self, vocabulary, width, tags, rngs):
        self.embedding = nnx.Embed(vocabulary, width, rngs=rngs)
        self.gru = jaxpar.nn.GRU(width, width, batch_first=True, bidirectional=True, rngs=rngs)
        self.head = nnx.Linear(2 * width, tags, rngs=rngs)

    def __call__(self, tokens):
        x, _ = self.gru(self.embedding(tokens))
        return self.head(x)


def gru(vocabulary=8192, width=128, tags=17, rows=8, steps=24):
    return Case(
        "GRU tagger",
        lambda: Tagger(vocabulary, width, tags),
        lambda rngs: FlaxTagger(vocabulary, width, tags, rngs),
        (integers(vocabulary, rows, steps),),
    )
