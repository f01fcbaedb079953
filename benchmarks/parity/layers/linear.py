"""Linear and embedding layers."""

import jax
import jax.numpy as jnp
from flax import nnx
from torch import nn

from ..case import Case, integers, normal

ROWS = (normal(4, 5),)
TOKENS = (integers(11, 4, 6),)


class Padded(nnx.Embed):
    """torch's `padding_idx=0`: that row gets no gradient. Flax has no such option."""

    def __call__(self, tokens):
        found = super().__call__(tokens)
        return jnp.where((tokens == 0)[..., None], jax.lax.stop_gradient(found), found)


class Tied(nn.Module):
    """The output layer is the embedding's own table."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 5)

    def forward(self, tokens):
        return self.embedding(tokens) @ self.embedding.weight.T


class FlaxTied(nnx.Module):
    def __init__(self, rngs):
        self.embedding = nnx.Embed(11, 5, rngs=rngs)

    def __call__(self, tokens):
        return self.embedding.attend(self.embedding(tokens))


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(11, 5, mode="mean")

    def forward(self, tokens):
        return self.embedding(tokens)


class FlaxBag(nnx.Module):
    def __init__(self, rngs):
        self.embedding = nnx.Embed(11, 5, rngs=rngs)

    def __call__(self, tokens):
        return self.embedding(tokens).mean(-2)


CASES = [
    Case("Linear", lambda: nn.Linear(5, 7), lambda rngs: nnx.Linear(5, 7, rngs=rngs), ROWS),
    Case(
        "Linear without bias",
        lambda: nn.Linear(5, 7, bias=False),
        lambda rngs: nnx.Linear(5, 7, use_bias=False, rngs=rngs),
        ROWS,
    ),
    Case(
        "Linear, 3 axes",
        lambda: nn.Linear(5, 5),
        lambda rngs: nnx.Linear(5, 5, rngs=rngs),
        (normal(2, 3, 5),),
    ),
    Case(
        "Linear, 2048 wide",
        lambda: nn.Linear(2048, 3),
        lambda rngs: nnx.Linear(2048, 3, rngs=rngs),
        (normal(4, 2048),),
    ),
    Case("Embedding", lambda: nn.Embedding(11, 5), lambda rngs: nnx.Embed(11, 5, rngs=rngs), TOKENS),
    Case(
        "Embedding, padding_idx",
        lambda: nn.Embedding(11, 5, padding_idx=0),
        lambda rngs: Padded(11, 5, rngs=rngs),
        TOKENS,
    ),
    Case("Embedding, tied output", Tied, FlaxTied, TOKENS),
    Case("EmbeddingBag, mean", Bag, FlaxBag, TOKENS),
]
