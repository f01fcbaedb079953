"""Hooks by themselves. Three replicas have the same gradients, so a sum is three times what one sends."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar import comm_hooks
from jaxpar.comm_hooks import _powersgd
from jaxpar.comm_hooks.hook import Bucket

W = 3
RANDOM = np.random.RandomState(0)


def sent_three_times(arrays):
    return [W * x for x in arrays]


def reduced(hook, gradients, calls=0):
    """What a hook returns after so many calls before it."""
    gradients = [jnp.asarray(g) for g in gradients]
    message = SimpleNamespace(sum=sent_three_times)
    message.alone = lambda: message
    bucket = Bucket(gradients, W, "replicas", jnp.int32(0), message)
    state = hook.init(gradients)
    if hasattr(state, "calls"):
        state = state._replace(calls=jnp.int32(calls))
    return hook.reduce(state, bucket)


@pytest.mark.parametrize("hook", [comm_hooks.mean, comm_hooks.allreduce], ids=["mean", "allreduce"])
def test_gradients_are_scaled_before_they_are_summed(hook):
    """docs/semantics.md rows D4, H2. XLA makes a product with 1/W of the division, too."""
    x = RANDOM.randn(1000)
    np.testing.assert_array_equal(reduced(hook, [x])[1][0], W * (x * (1 / W)))
    large = np.full(3, np.finfo(np.float64).max / 2)
    assert np.isfinite(reduced(hook, [large])[1][0]).all()


def test_nothing_is_reduced_by_noop():
    assert reduced(comm_hooks.noop, [np.ones(2)])[1][0].tolist() == [1, 1]


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_compressed_gradients_come_back_in_their_own_type(name, dtype):
    """docs/semantics.md row H3: cast, divided, summed, cast back."""
    hook = {"float16": comm_hooks.fp16_compress, "bfloat16": comm_hooks.bf16_compress}[name]
    x = jnp.asarray(RANDOM.randn(100), dtype)
    (got,) = reduced(hook, [x])[1]
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, (W * (x.astype(name) / W)).astype(dtype))


def rank_one(*shape):
    """A kernel [*k, in, out] that is a product of two vectors as a matrix [out, in * k]."""
    return np.outer(RANDOM.randn(int(np.prod(shape[:-1]))), RANDOM.randn(shape[-1])).reshape(shape)


@pytest.mark.parametrize("shape", [(30, 20), (7, 6, 20), (2, 3, 5, 20)])
@pytest.mark.parametrize("warm_start", [True, False])
def test_powersgd_says_a_matrix_of_low_rank_exactly(shape, warm_start):
    """docs/semantics.md row H6."""
    hook = comm_hooks.powersgd(1, start_powersgd_iter=2, warm_start=warm_start)
    kernel = rank_one(*shape)
    state, (got,) = reduced(hook, [kernel], calls=2)
    np.testing.assert_allclose(got, kernel, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(state.errors[0], 0, atol=1e-12)
    assert int(state.calls) == 3


def test_powersgd_draws_torchs_numbers_in_each_compressed_call(monkeypatch):
    """torch's RandomState draws a seed for each of them, and torch.randn what Q begins from."""
    torch = pytest.importorskip("torch")
    drawn, draw = [], _powersgd._draw
    monkeypatch.setattr(_powersgd, "_draw", lambda *args: drawn.append(draw(*args)) or drawn[-1])
    hook = comm_hooks.powersgd(1, start_powersgd_iter=2, warm_start=False, random_seed=5)
    seeds = np.random.RandomState(5)
    for calls in (2, 3):
        jax.block_until_ready(reduced(hook, [RANDOM.randn(30, 20)], calls))
        torch.manual_seed(seeds.randint(1_000_000_000))
        (query,) = drawn[-1]
        np.testing.assert_array_equal(query, torch.randn(1, *query.shape, dtype=torch.float64)[0].numpy())


def test_powersgd_keeps_what_it_could_not_say():
    hook = comm_hooks.powersgd(1, start_powersgd_iter=2)
    x = RANDOM.randn(30, 20)
    state, (got,) = reduced(hook, [x], calls=2)
    assert float(jnp.abs(got - x).max()) > 0.1
    np.testing.assert_allclose(got + state.errors[0], x, rtol=1e-12)
    (query,) = state.queries  # the next one begins from it: with an orthonormal P, the mean of M^T P
    np.testing.assert_allclose(jnp.linalg.norm(query), jnp.linalg.norm(got), rtol=1e-10)


@pytest.mark.parametrize(("calls", "exact"), [(0, True), (1, True), (2, False)])
def test_powersgd_begins_after_so_many_calls(calls, exact):
    x = RANDOM.randn(30, 20)
    (got,) = reduced(comm_hooks.powersgd(1, start_powersgd_iter=2), [x], calls)[1]
    assert np.allclose(got, x, rtol=1e-12) == exact


@pytest.mark.parametrize(
    ("shape", "rate", "compressed"),
    [((4, 4), 2, False), ((4, 4), 1.9, True), ((5, 4), 2, True), ((20,), 2, False)],
)
def test_powersgd_compresses_what_becomes_smaller_by_more_than_the_rate(shape, rate, compressed):
    x = RANDOM.randn(*shape)
    hook = comm_hooks.powersgd(1, start_powersgd_iter=2, min_compression_rate=rate)
    (got,) = reduced(hook, [x], calls=2)[1]
    assert np.allclose(got, x, rtol=1e-12) != compressed
