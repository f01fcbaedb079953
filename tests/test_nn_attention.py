"""Attention of jaxpar.nn against torch.nn: the law's table, masks, dropout, bad input."""

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
from against_torch.cases.attention import CASES, REFUSED  # noqa: E402
from against_torch.layers import TOLERANCE, difference, refusal, round_trip  # noqa: E402

torch.set_num_threads(1)

F64 = {"param_dtype": jnp.float64}
X = np.random.RandomState(0).randn(3, 2, 4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_five_steps_equal_torch(case):
    assert difference(case) <= TOLERANCE


LAYERS = {case.torch: case for case in CASES if case.torch.startswith("Multihead")}


@pytest.mark.parametrize("layer", LAYERS)
def test_weights_come_back_as_they_were(layer):
    assert round_trip(LAYERS[layer])


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_refusals(row):
    assert refusal(row)


def test_a_query_without_keys():
    """NaN with the weights, the output's bias without: torch's two answers."""
    net = jaxpar.nn.MultiheadAttention(4, 2, **F64, rngs=nnx.Rngs(0))
    net.out_proj.bias.set_value(jnp.arange(4.0))
    mask = np.array([[0, 0, 0], [1, 1, 1], [0, 1, 0]], bool)
    output, weights = net(X, X, X, attn_mask=mask)
    assert np.isnan(output[1]).all()
    assert np.isnan(weights[:, 1]).all()
    assert np.isfinite(output[::2]).all()
    output, weights = net(X, X, X, attn_mask=mask, need_weights=False)
    assert weights is None
    assert_equal_numbers("output", output[1], np.tile(np.arange(4.0), (2, 1)), 0.0)


def test_the_two_polarities():
    """True takes part in one function and is blocked in the other."""
    q, k, v = np.random.RandomState(0).randn(3, 1, 3, 4)
    mask = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1]], bool)
    params = {"in_proj_weight": np.tile(np.eye(4), 3), "out_proj_weight": np.eye(4)}
    taking = F.scaled_dot_product_attention(q, k, v, mask)[0]
    blocking, _ = F.multi_head_attention_forward(q[0], k[0], v[0], 1, params, attn_mask=~mask)
    assert_equal_numbers("outputs", blocking, taking, 1e-15)


def test_dropout():
    """Weights are dropped and the others grow; evaluation drops nothing."""
    net = jaxpar.nn.MultiheadAttention(4, 2, dropout=0.5, **F64, rngs=nnx.Rngs(0, dropout=1))
    net.eval()
    _, plain = net(X, X, X, average_attn_weights=False)
    net.train()
    _, weights = net(X, X, X, average_attn_weights=False)
    _, again = net(X, X, X, average_attn_weights=False)
    kept = np.asarray(weights) != 0
    assert 0.2 < kept.mean() < 0.8
    assert_equal_numbers("kept weights", np.asarray(weights)[kept], 2 * np.asarray(plain)[kept], 1e-14)
    assert not np.array_equal(weights, again)
    with pytest.raises(ValueError, match="neither a key nor a mask"):
        F.scaled_dot_product_attention(X, X, X, dropout_p=0.5)


def test_initial_values():
    net = jaxpar.nn.MultiheadAttention(48, 4, add_bias_kv=True, rngs=nnx.Rngs(0))
    bound = (6 / (48 + 3 * 48)) ** 0.5
    assert 0.9 * bound < np.abs(net.in_proj_weight[...]).max() <= bound
    assert 0.9 / 48**0.5 < np.abs(net.out_proj.kernel[...]).max() <= 1 / 48**0.5
    assert not net.in_proj_bias[...].any()
    assert not net.out_proj.bias[...].any()
    assert 0.7 < np.std(net.bias_k[...]) * 48**0.5 < 1.3


@pytest.mark.full
def test_types():
    net = jaxpar.nn.MultiheadAttention(4, 2, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    mask = np.array([[0, 0, 1]] * 3, bool)
    output, weights = net(X.astype(np.float32), X, X, attn_mask=mask)
    assert output.dtype == weights.dtype == jnp.bfloat16


def products(net, *inputs) -> int:
    return str(jax.make_jaxpr(lambda *x: net(*x)[0])(*inputs)).count("dot_general[")


def test_products_with_the_same_input_are_one():
    net = jaxpar.nn.MultiheadAttention(4, 2, **F64, rngs=nnx.Rngs(0))
    assert products(lambda x: net(x, x, x), X) == 4
    assert products(lambda x, y: net(x, y, y), X, X) == 5
    assert products(net, X, X, X) == 6
    half = jaxpar.nn.MultiheadAttention(4, 2, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert products(lambda x: half(x, x, x), X) == 4


MHA = jaxpar.nn.MultiheadAttention(4, 2, rngs=nnx.Rngs(0))
BAD_CALLS = {
    "axes": (lambda: MHA(X[None], X, X), ValueError, "query should be unbatched 2D or batched 3D tensor but"),
    "axes of keys": (
        lambda: MHA(X, X[0], X),
        ValueError,
        r"For batched \(3-D\) `query`, expected `key` and `value` to be 3-D but found 2-D and 3-D tensors",
    ),
    "a padding mask": (
        lambda: MHA(X[:, 0], X[:, 0], X[:, 0], np.zeros((2, 3), bool)),
        ValueError,
        r"For unbatched \(2-D\) `query`, expected `key_padding_mask` to be `None` or 1-D but found 2-D",
    ),
    "a padding mask's shape": (
        lambda: MHA(X, X, X, np.zeros((3, 2), bool)),
        ValueError,
        r"Expected key_padding_mask of shape \(2, 3\), but got \(3, 2\)",
    ),
    "a mask's axes": (
        lambda: MHA(X, X, X, attn_mask=np.zeros(3, bool)),
        ValueError,
        "expected `attn_mask` to be `None`, 2-D or 3-D but found 1-D",
    ),
    "a 2-d mask": (
        lambda: MHA(X, X, X, attn_mask=np.zeros((3, 2), bool)),
        RuntimeError,
        r"The shape of the 2D attn_mask is \(3, 2\), but should be \(3, 3\)",
    ),
    "a 3-d mask": (
        lambda: MHA(X, X, X, attn_mask=np.zeros((2, 3, 3), bool)),
        RuntimeError,
        r"The shape of the 3D attn_mask is \(2, 3, 3\), but should be \(4, 3, 3\)",
    ),
    "an integer mask": (
        lambda: MHA(X, X, X, attn_mask=np.zeros((3, 3), int)),
        ValueError,
        "only bool and floating types of attn_mask are supported",
    ),
    "a hint without a mask": (
        lambda: MHA(X, X, X, is_causal=True),
        RuntimeError,
        "Need attn_mask if specifying the is_causal hint",
    ),
    "lengths": (lambda: MHA(X, X, X[:2]), ValueError, "key's sequence and batch dims"),
    "a width": (
        lambda: MHA(X[..., :3], X, X),
        ValueError,
        "was expecting embedding dimension of 4, but got 3",
    ),
    "a value's width": (
        lambda: MHA(X, X, X[..., :3]),
        ValueError,
        r"key shape \(3, 2, 4\) does not match value shape \(3, 2, 3\)",
    ),
    "a mask and a hint": (
        lambda: F.scaled_dot_product_attention(X, X, X, np.ones((2, 2), bool), is_causal=True),
        RuntimeError,
        "Explicit attn_mask should not be set when is_causal=True",
    ),
    "integers": (
        lambda: F.scaled_dot_product_attention(X, X, X, np.ones((2, 2), int)),
        RuntimeError,
        "Expected attn_mask dtype to be bool or float, but got int64",
    ),
    "heads": (
        lambda: F.scaled_dot_product_attention(X, X[:2], X[:2], enable_gqa=True),
        RuntimeError,
        "must divide the number of heads in query: key has 2, query 3",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls(name):
    call, error, message = BAD_CALLS[name]
    with pytest.raises(error, match=message):
        call()
