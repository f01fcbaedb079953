"""Pools against torch's: tables of cases, any geometry, and what has no gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_numbers
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.nn import functional as F
from jaxpar.nn._window import pool_windows

torch = pytest.importorskip("torch")
from against_torch.cases.pools import CASES, REFUSED  # noqa: E402
from against_torch.layers import difference, refusal  # noqa: E402

torch.set_num_threads(1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case):
    difference(case)


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_refused(row):
    refusal(row)


@st.composite
def geometries(draw):
    k = draw(st.integers(1, 9))
    return {
        "n": draw(st.integers(1, 20)),
        "kernel_size": k,
        "stride": draw(st.integers(1, 8)),
        "padding": draw(st.integers(0, k // 2)),
        "dilation": draw(st.integers(1, 4)),
        "ceil_mode": draw(st.booleans()),
    }


@settings(deadline=None, max_examples=300)
@given(geometries())
def test_any_geometry_has_torchs_windows(geometry):
    n = geometry.pop("n")
    (window,) = pool_windows("max_pool", None, **geometry)
    numbers = torch.arange(n, dtype=torch.float64)[None, None]
    try:
        largest, places = torch.nn.functional.max_pool1d(numbers, **geometry, return_indices=True)
    except RuntimeError:
        assert window.count(n) < 1
        return
    assert window.count(n) == largest.shape[-1]
    begins = np.arange(window.count(n)) * window.stride - window.padding
    members = begins[:, None] + np.arange(window.size) * window.dilation
    exists = (members >= 0) & (members < n)
    if exists.any(1).all():  # of a window without elements torch's own answer is out of range
        np.testing.assert_array_equal(np.where(exists, members, -1).max(1), places[0, 0].numpy())


@pytest.mark.full
@settings(deadline=None, max_examples=8)
@given(geometries(), st.integers(0, 2**31))
def test_any_geometry_has_torchs_numbers(geometry, seed):
    n = geometry.pop("n")
    x = np.random.RandomState(seed % 1000).randint(-2, 3, (1, n, 2)).astype(float)
    tensor = torch.tensor(x.transpose(0, 2, 1), requires_grad=True)
    options = tuple(geometry.values())
    try:
        want, places = torch.nn.functional.max_pool1d(tensor, *options, return_indices=True)
    except RuntimeError:
        with pytest.raises(ValueError, match="Output size is too small"):
            F.max_pool(jnp.asarray(x), *options)
        return
    if not torch.isfinite(want).all():
        return
    (want**3).sum().backward()
    got, vjp, found = jax.vjp(
        lambda x: F.max_pool(x, *options, return_indices=True), jnp.asarray(x), has_aux=True
    )
    assert_equal_numbers("values", got, want.detach().numpy().transpose(0, 2, 1), 0)
    assert_equal_numbers("places", found, places.numpy().transpose(0, 2, 1))
    assert_equal_numbers("gradient", vjp(3 * got**2)[0], tensor.grad.numpy().transpose(0, 2, 1))


def test_integers():
    x = np.random.RandomState(0).randint(-9, 9, (2, 5, 4, 3))
    tensor = torch.tensor(x.transpose(0, 3, 1, 2).copy())
    for ours, theirs in ((F.max_pool, "max_pool2d"), (F.avg_pool, "avg_pool2d")):
        want = getattr(torch.nn.functional, theirs)(tensor, 2, 1).numpy()
        assert_equal_numbers(theirs, ours(jnp.asarray(x), 2, 1), want.transpose(0, 2, 3, 1))


def test_nan_wins():
    x = np.arange(36.0).reshape(1, 6, 6, 1)
    x[0, 2, 2] = x[0, 3, 3] = np.nan
    want, places = torch.nn.functional.max_pool2d(torch.tensor(x[..., 0]), 3, 2, 1, return_indices=True)
    got, found = F.max_pool(jnp.asarray(x), 3, 2, 1, return_indices=True)
    np.testing.assert_array_equal(got[..., 0], want.numpy())
    np.testing.assert_array_equal(found[..., 0], places.numpy())


def test_half_precision_is_summed_in_float32():
    x = (100 + np.random.RandomState(0).randn(1, 64, 3)).astype(jnp.bfloat16)
    want = x.astype(np.float32).mean(1, keepdims=True).astype(jnp.bfloat16)
    for y in (F.avg_pool(jnp.asarray(x), 64), F.adaptive_avg_pool(jnp.asarray(x), 1)):
        assert y.dtype == jnp.bfloat16
        np.testing.assert_array_equal(y, want)


def test_derivatives_in_both_directions():
    x = jnp.asarray(np.random.RandomState(0).randn(1, 7, 6, 2))
    for pool in (
        lambda x: F.max_pool(x, 3, 2, 1),
        lambda x: F.avg_pool(x, 3, 2, 1),
        lambda x: F.avg_pool(x, (2, 4), ceil_mode=True),
    ):
        forward, backward = jax.jit(jax.jacfwd(pool))(x), jax.jit(jax.jacrev(pool))(x)
        assert_equal_numbers("Jacobian", forward, np.asarray(backward))


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("kernel_size", [1, 2, 3, (2, 4)])
def test_a_mean_is_linear(kernel_size, ceil_mode):
    """Its derivative, which is written out for windows side by side, is the function itself."""
    x, dx = np.random.RandomState(0).randn(2, 1, 7, 6, 2)

    def pool(x):
        return F.avg_pool(x, kernel_size, ceil_mode=ceil_mode)

    change = jax.jvp(pool, (jnp.asarray(x),), (jnp.asarray(dx),))[1]
    assert_equal_numbers("change", change, np.asarray(pool(jnp.asarray(dx))))


def test_shapes_that_are_no_pictures():
    with pytest.raises(ValueError, match=r"max_pool: x has shape \(8, 3\), which is not"):
        F.max_pool(jnp.ones((8, 3)), 2)
    with pytest.raises(ValueError, match=r"stride=\(1, 1\) has 2 numbers for 3 spatial axes"):
        F.avg_pool(jnp.ones((8, 8, 8, 3)), (2, 2, 2), (1, 1))


@pytest.mark.full
@pytest.mark.parametrize("p", [1.5, 3, 0.5, 2])
def test_the_gradient_of_a_root_of_a_negative_number(p):
    """NaN where torch has NaN, and the numbers of the other windows."""
    v = np.array([1.0, -2.0, 3.0, 0.5])
    theirs = torch.tensor(v, requires_grad=True)
    torch.nn.functional.lp_pool1d(theirs[None], float(p), 2).sum().backward()
    ours = jax.grad(lambda v: F.lp_pool(v[None, :, None], p, 2).sum())(jnp.asarray(v))
    np.testing.assert_allclose(ours, theirs.grad, rtol=1e-14)


@pytest.mark.parametrize("index", [4, -1, 2**32 + 1])
def test_an_index_outside_of_what_is_unpooled(index):
    """Raises for a host array, as in torch; of an array of JAX it is dropped, and has no gradient."""
    x = jnp.ones((1, 2, 1), jnp.float32)
    with jax.enable_x64(False):
        with pytest.raises(
            RuntimeError, match=rf"invalid max index: {index} \(output volumes are of size 4\)"
        ):
            F.max_unpool(x, np.array([[[0], [index]]]), (2,))
        if index < 5:
            y, pull = jax.vjp(lambda x: F.max_unpool(x, jnp.array([[[0], [index]]]), (2,)), x)
            assert y.reshape(-1).tolist() == [1, 0, 0, 0]
            assert pull(jnp.ones_like(y))[0].reshape(-1).tolist() == [1, 0]
