"""Transformer layers of jaxpar.nn against torch.nn: the law's table, dropout, copies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_numbers
from flax import nnx

import jaxpar

torch = pytest.importorskip("torch")
from against_torch.cases.transformer import CASES, REFUSED  # noqa: E402
from against_torch.layers import TOLERANCE, difference, refusal  # noqa: E402

torch.set_num_threads(1)

X = np.random.RandomState(0).randn(3, 2, 4)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(
    "case",
    [c if i % 3 == 0 else pytest.param(c, marks=pytest.mark.slow) for i, c in enumerate(CASES)],
    ids=str,
)
def test_five_steps_equal_torch(case):
    assert difference(case) <= TOLERANCE


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_refusals(row):
    assert refusal(row)


@pytest.fixture(scope="module")
def net():
    layer = jaxpar.nn.TransformerEncoderLayer(4, 2, 6, dropout=0.5, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    return jaxpar.nn.TransformerEncoder(layer, 2)


def test_copies_have_the_same_values_and_their_own_random_numbers(net):
    first, second = (nnx.state(layer) for layer in net.layers)
    for (path, a), (_, b) in zip(nnx.to_flat_state(first), nnx.to_flat_state(second), strict=True):
        same = np.array_equal(jax.random.key_data(a[...]), jax.random.key_data(b[...])) if (
            isinstance(a, nnx.RngKey)
        ) else np.array_equal(a[...], b[...])  # fmt: skip
        assert same != isinstance(a, nnx.RngKey), path


@pytest.mark.full
def test_dropout_is_for_training(net):
    net.train()
    assert not np.array_equal(net(X), net(X))
    net.eval()
    assert_equal_numbers("evaluation", net(X), net(X), 0.0)


def test_initial_values():
    """torch's: everything of a Linear from U(-1/sqrt(in), 1/sqrt(in))."""
    layer = jaxpar.nn.TransformerEncoderLayer(16, 2, 64, rngs=nnx.Rngs(0))
    for p, inputs in [
        (layer.linear1.kernel, 16),
        (layer.linear1.bias, 16),
        (layer.linear2.kernel, 64),
        (layer.linear2.bias, 64),
        (layer.self_attn.out_proj.kernel, 16),
    ]:
        assert 0.75 < np.abs(p[...]).max() * inputs**0.5 <= 1
    assert not layer.self_attn.out_proj.bias[...].any()
