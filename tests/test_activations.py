"""Activations, Bilinear, and dropout as a function of its mask, against torch's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_numbers
from flax import nnx

import jaxpar
from jaxpar.nn import functional as F

torch = pytest.importorskip("torch")
from against_torch.cases.activations import CASES, REFUSED  # noqa: E402
from against_torch.layers import difference, refusal  # noqa: E402

torch.set_num_threads(1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case):
    difference(case)


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_refused(row):
    refusal(row)


# torch's call, jaxpar's, and the shape of torch's mask for x [N, C, *S], which is the first it draws.
DROPOUTS = {
    "dropout": ("dropout", (6, 4, 5)),
    "dropout1d": ("feature_dropout", (6, 4, 1)),
    "alpha_dropout": ("alpha_dropout", (6, 4, 5)),
    "feature_alpha_dropout": ("feature_alpha_dropout", (6, 4, 1)),
}


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("name", DROPOUTS)
def test_the_same_function_of_the_mask(name, p):
    ours, shape = DROPOUTS[name]
    x = np.random.RandomState(0).randn(6, 5, 4)
    x[0, 0, 0], x[1, 1, 1] = np.inf, np.nan
    tensor = torch.tensor(x.transpose(0, 2, 1).copy(), requires_grad=True)
    torch.manual_seed(0)
    mask = torch.empty(shape, dtype=torch.float64).bernoulli_(1 - p).bool()
    torch.manual_seed(0)
    want = getattr(torch.nn.functional, name)(tensor, p, True)
    want.sum().backward()
    keep = jnp.asarray(mask.numpy().transpose(0, 2, 1))
    got, vjp = jax.vjp(lambda x: getattr(F, ours)(x, p, True, mask=keep), jnp.asarray(x))
    expected = want.detach().numpy().transpose(0, 2, 1)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    assert_equal_numbers(name, np.nan_to_num(got), np.nan_to_num(expected), 1e-12)
    (gradient,) = vjp(jnp.ones_like(got))
    assert_equal_numbers("gradient", gradient, tensor.grad.numpy().transpose(0, 2, 1), 1e-12)


def test_rrelu_is_the_same_function_of_its_slopes():
    x = np.random.RandomState(0).randn(50)
    tensor = torch.tensor(x, requires_grad=True)
    want = torch.nn.functional.rrelu(tensor, 0.1, 0.4, training=True)
    want.sum().backward()
    slopes = jnp.asarray(np.where(x > 0, 1, want.detach().numpy() / x))
    got, vjp = jax.vjp(lambda x: F.rrelu(x, training=True, slope=slopes), jnp.asarray(x))
    assert_equal_numbers("values", got, want.detach().numpy(), 1e-15)
    assert_equal_numbers("gradient", vjp(jnp.ones_like(got))[0], tensor.grad.numpy(), 1e-15)


LAYERS = {"Dropout": (1000, 7, 3), "FeatureDropout": (1000, 1, 3)}


@pytest.mark.parametrize("p", [0.2, 0.5])
@pytest.mark.parametrize("name", LAYERS)
def test_masks(name, p):
    layer = getattr(jaxpar.nn, name)(p, rngs=nnx.Rngs(dropout=0))
    x = jnp.ones((1000, 7, 3))
    first, second = layer(x), layer(x)
    assert not np.array_equal(first, second)
    for y in (first, second):
        np.testing.assert_allclose(np.unique(y), [0, 1 / (1 - p)], rtol=1e-6)
        kept = np.asarray(y != 0)
        whole = np.broadcast_to(kept[:, :1], kept.shape) if name == "FeatureDropout" else kept
        np.testing.assert_array_equal(kept, whole)
        draws = np.prod(LAYERS[name])
        rate = kept.mean()
        assert abs(rate - (1 - p)) < 5 * (p * (1 - p) / draws) ** 0.5
    layer.eval()
    assert layer(x) is x
    layer.train()
    again = getattr(jaxpar.nn, name)(p, rngs=nnx.Rngs(dropout=0))
    np.testing.assert_array_equal(again(x), first)


def test_alpha_dropout_keeps_mean_and_variance():
    x = jax.random.normal(jax.random.key(0), (200_000,))
    y = jaxpar.nn.AlphaDropout(0.3, rngs=nnx.Rngs(0))(x)
    assert abs(float(y.mean())) < 0.02
    assert abs(float(y.std()) - 1) < 0.02


def test_layers_draw_numbers_of_their_own():
    rngs = nnx.Rngs(0)
    one, two = jaxpar.nn.Dropout(rngs=rngs), jaxpar.nn.Dropout(rngs=rngs)
    assert not np.array_equal(one(jnp.ones(100)), two(jnp.ones(100)))


def test_random_slopes_are_between_the_bounds():
    layer = jaxpar.nn.RReLU(0.1, 0.4, rngs=nnx.Rngs(0))
    y = layer(-jnp.ones(10_000))
    assert -0.4 < float(y.min()) < -0.39
    assert -0.11 < float(y.max()) < -0.1
    layer.eval()
    np.testing.assert_allclose(layer(-jnp.ones(3)), -0.25)


@pytest.mark.parametrize("function", [F.dropout, F.feature_dropout])
def test_a_stream_gives_its_next_key_if_one_is_needed(function):
    x, stream = jnp.ones((20, 30)), nnx.Rngs(dropout=3).dropout
    np.testing.assert_array_equal(function(x, training=False, key=stream), x)
    wanted = function(x, key=nnx.Rngs(dropout=3).dropout())
    np.testing.assert_array_equal(function(x, key=stream), wanted)
    assert (function(x, key=stream) != wanted).any()


def test_training_needs_a_key_or_a_mask():
    for function in (F.dropout, F.feature_dropout, F.rrelu):
        with pytest.raises(ValueError, match="there is neither a key nor a"):
            function(jnp.ones((2, 3)), training=True)
    with pytest.raises(ValueError, match=r"feature_dropout: x should be \[N, \*S, C\]"):
        F.feature_dropout(jnp.ones(3), key=jax.random.key(0))
