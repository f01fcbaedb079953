"""jax.nn.dot_product_attention in float64: exact in `in_float64`, itself untouched."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_numbers
from flax import nnx

from jaxpar.parity._sides.flax_float64 import in_float64

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
    got = jax.jit(in_float64(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **ours)))(q, k, v)
    want = torch.nn.functional.scaled_dot_product_attention(
        *(torch.tensor(x).transpose(1, 2) for x in (q, k, v)), enable_gqa=True, **theirs
    )
    assert_equal_numbers("attention", got, want.transpose(1, 2).numpy(), 1e-14)


def attention(q, k, v):
    return jax.nn.dot_product_attention(q, k, v)


def test_jaxs_own_rounds():
    q, k, v = arrays(H)
    error = float(jnp.abs(attention(q, k, v) - in_float64(attention)(q, k, v)).max())
    assert 1e-10 < error < 1e-6, f"JAX's error is {error}: is in_float64 still needed?"


def sharded(q, k, v):
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    return jax.jit(jax.shard_map(attention, mesh=mesh, in_specs=spec, out_specs=spec))(q, k, v)


INSIDE = {
    "jit": jax.jit(attention),
    "remat": jax.checkpoint(attention),
    "vmap": jax.vmap(lambda q, k, v: attention(q[None], k[None], v[None])[0]),
    "scan": lambda q, k, v: jax.lax.scan(lambda c, _: (c, attention(q, k, v)), 0, length=2)[1][1],
    "cond": lambda q, k, v: jax.lax.cond(q.sum() < jnp.inf, attention, lambda q, k, v: q, q, k, v),
    "shard_map": sharded,
    "without a batch": lambda q, k, v: jnp.stack([attention(*each) for each in zip(q, k, v, strict=True)]),
}


@pytest.mark.parametrize("what", INSIDE)
def test_whatever_it_is_in(what):
    q, k, v = arrays(H)
    want = in_float64(attention)(q, k, v)
    assert_equal_numbers(what, in_float64(INSIDE[what])(q, k, v), want, 1e-15)


@pytest.mark.full
@pytest.mark.parametrize("rule", [False, True])
def test_its_gradient_is_torchs_in_float64(rule):
    q, k, v = arrays(H)
    with custom_rule(rule):
        total = in_float64(lambda *given: (attention(*given) ** 2).sum())
        got = jax.grad(total, (0, 1, 2))(q, k, v)
    tensors = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    heads = (x.transpose(1, 2) for x in tensors)
    (torch.nn.functional.scaled_dot_product_attention(*heads) ** 2).sum().backward()
    for ours, theirs in zip(got, tensors, strict=True):
        assert_equal_numbers("gradient", ours, theirs.grad.numpy(), 1e-13)


@contextlib.contextmanager
def custom_rule(on: bool):
    before = jax.config.jax_softmax_custom_jvp
    jax.config.update("jax_softmax_custom_jvp", on)
    yield
    jax.config.update("jax_softmax_custom_jvp", before)


def test_rows_without_keys_stay_finite():
    alone = np.zeros((N, 1, T, S), bool)
    lonely = in_float64(lambda *given: jax.nn.dot_product_attention(*given, mask=alone))(*arrays(H))
    assert np.isfinite(lonely).all()


@pytest.mark.full
def test_flax_uses_it():
    layer = nnx.MultiHeadAttention(2, 4, decode=False, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    x = RANDOM.randn(2, 3, 4)
    assert 0 < float(jnp.abs(layer(x) - in_float64(layer)(x)).max()) < 1e-6
