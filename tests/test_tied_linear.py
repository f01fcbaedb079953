"""TiedLinear: torch's `linear.weight = embedding.weight`, with one variable in both layers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx

from jaxpar import errors, parity
from jaxpar.nn import channels_first as nn

WORDS, WIDTH = 7, 4


class Torch(torch.nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.encoder = torch.nn.Embedding(WORDS, WIDTH)
        self.decoder = torch.nn.Linear(WIDTH, WORDS, bias=bias)
        self.decoder.weight = self.encoder.weight

    def forward(self, places):
        return self.decoder(self.encoder(places))


class Flax(nnx.Module):
    def __init__(self, bias=True, embed=nn.Embedding, **options):
        rngs = nnx.Rngs(0)
        self.encoder = embed(WORDS, WIDTH, rngs=rngs)
        self.decoder = nn.TiedLinear(nn.Linear(WIDTH, WORDS, bias=bias, rngs=rngs, **options), self.encoder)

    def __call__(self, places):
        return self.decoder(self.encoder(places))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("embed", [nn.Embedding, nnx.Embed])
def test_it_trains_as_in_torch(bias, embed):
    places, sgd = torch.tensor([[1, 2], [2, 6]]), (lambda each: torch.optim.SGD(each, 0.1), optax.sgd(0.1))
    comparison = parity.compare(Torch(bias), Flax(bias, embed), places, steps=3, optimizer=sgd)
    assert comparison.same, str(comparison)


def test_the_table_is_one_variable():
    net = Flax()
    assert len(jax.tree.leaves(nnx.state(net, nnx.Param))) == 2
    net.encoder.embedding[...] = jnp.ones((WORDS, WIDTH), jnp.float32)
    net.decoder.bias[...] = jnp.zeros(WORDS, jnp.float32)
    assert np.array_equal(net(jnp.array([3])), np.full((1, WORDS), WIDTH))


def test_a_planted_copy_of_the_table_is_seen():
    net = Flax()
    net.decoder.embedding = nnx.Param(net.encoder.embedding[...])
    with pytest.raises(errors.MatchError, match=r"encoder\.weight"):
        parity.compare(Torch(), net, torch.tensor([[1, 2]]))


def test_torchs_weights_there_and_back():
    theirs = Torch()
    back = parity.to_torch(parity.load_torch(Flax(), theirs))
    assert back.keys() == theirs.state_dict().keys()
    for name, want in theirs.state_dict().items():
        assert torch.equal(back[name], want), name


def test_the_type_is_the_linears():
    assert Flax(dtype=jnp.bfloat16)(jnp.array([1])).dtype == jnp.bfloat16
    assert Flax()(jnp.array([1])).dtype == jnp.float32


def test_a_table_of_another_shape_is_refused():
    rngs = nnx.Rngs(0)
    with pytest.raises(ValueError, match=r"TiedLinear: a table \(7, 4\) for a kernel \(7, 4\)"):
        nn.TiedLinear(nn.Linear(7, 4, rngs=rngs), nn.Embedding(7, 4, rngs=rngs))
