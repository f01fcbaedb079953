"""jax.nn.dot_product_attention in float64: exact inside `softmax_in_float64`, and as ever outside."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_numbers
from flax import nnx

from jaxpar.parity._sides.flax_attention import softmax_in_float64

torch = pytest.importorskip("torch")

N, H, T, S, D = 2, 4, 3, 5, 6
RANDOM = np.random.RandomState(0)
MASK = RANDOM.rand(N, 1, T, S) < 0.5
MASK[..., 0] = True
BIAS = RANDOM.randn(N, H, T, S)
OPTIONS = {
    "plain": ({}, {}),
    "mask": ({"mask": MASK}, {"attn_mask": torch.tensor(MASK)}),
    "bias": ({"bias": BIAS}, {"attn_mask": torch.tensor(BIAS)}),
    "causal": ({"is_causal": True}, {"is_causal": True}),
    "scale": ({"scale": 0.3}, {"scale": 0.3}),
}


def arrays(keys: int, dtype=np.float64):
    return [RANDOM.randn(N, *shape).astype(dtype) for shape in ((T, H, D), (S, keys, D), (S, keys, D))]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("keys", [H, 2])
def test_it_is_torchs_in_float64(option, keys):
    ours, theirs = OPTIONS[option]
    q, k, v = arrays(keys)
    with softmax_in_float64():
        got = jax.jit(jax.nn.dot_product_attention, static_argnames="is_causal")(q, k, v, **ours)
    want = torch.nn.functional.scaled_dot_product_attention(
        *(torch.tensor(x).transpose(1, 2) for x in (q, k, v)), enable_gqa=True, **theirs
    )
    assert_equal_numbers("attention", got, want.transpose(1, 2).numpy(), 1e-14)


def test_outside_it_is_jaxs_own_and_rounds():
    q, k, v = arrays(H)
    own = jax.nn.dot_product_attention
    with softmax_in_float64():
        exact = jax.nn.dot_product_attention(q, k, v)
        assert jax.nn.dot_product_attention is not own
    assert jax.nn.dot_product_attention is own
    error = float(jnp.abs(own(q, k, v) - exact).max())
    assert 1e-10 < error < 1e-6, f"JAX's error is {error}: is softmax_in_float64 still needed?"


def test_other_types_and_rows_without_keys_stay_as_they_are():
    q, k, v = arrays(H, np.float32)
    own = jax.nn.dot_product_attention
    alone = np.zeros((N, 1, T, S), bool)
    with softmax_in_float64():
        got = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        lonely = jax.nn.dot_product_attention(*arrays(H), mask=alone)
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got, own(q, k, v, is_causal=True))
    assert np.isfinite(lonely).all()


def test_flax_uses_it():
    layer = nnx.MultiHeadAttention(2, 4, decode=False, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    x = RANDOM.randn(2, 3, 4)
    rounded = layer(x)
    with softmax_in_float64():
        exact = layer(x)
    assert 0 < float(jnp.abs(rounded - exact).max()) < 1e-6
