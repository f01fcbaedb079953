"""Convolutions in branches: the same function, the same derivatives of any order, the fast layout."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads

import jaxpar

CASES = {
    "plain": {"window_strides": (1, 1), "padding": "SAME"},
    "stride": {"window_strides": (2, 1), "padding": "VALID"},
    "padding": {"window_strides": (1, 2), "padding": [(0, 2), (1, 0)]},
    "input dilation": {"window_strides": (1, 1), "padding": [(0, 0), (0, 0)], "lhs_dilation": (2, 1)},
    "kernel dilation": {"window_strides": (1, 1), "padding": "SAME", "rhs_dilation": (1, 2)},
    "groups": {"window_strides": (1, 1), "padding": "SAME", "feature_group_count": 2},
}
LAYOUTS = [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("NHWC", "OIHW", "NCHW")]


def arrays(layout, groups):
    random = np.random.RandomState(0)
    x = random.randn(5, 6, 5, 4)  # N, H, W, C
    w = random.randn(3, 2, 4 // groups, 6)  # H, W, I, O
    return (
        jnp.asarray(x.transpose(["NHWC".index(c) for c in layout[0]])),
        jnp.asarray(w.transpose(["HWIO".index(c) for c in layout[1]])),
    )


def convolve(case, layout, dim):
    def f(x, w):
        return jnp.tanh(lax.conv_general_dilated(x, w, dimension_numbers=layout, **CASES[case]))

    def parallel(x, w):
        return jaxpar.data_parallel(lambda x: f(x, w), x, [0, 1, 2, 3], dim=dim)

    return f, parallel


@pytest.mark.slow
@pytest.mark.sampled(5)
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("case", CASES)
def test_value_and_derivatives(case, layout):
    """Five rows on four devices: three replicas, two kinds."""
    f, parallel = convolve(case, layout, 0)
    x, w = arrays(layout, CASES[case].get("feature_group_count", 1))
    np.testing.assert_allclose(jax.jit(parallel)(x, w), f(x, w), rtol=1e-12)

    def loss(function):
        return lambda x, w: (function(x, w) ** 2).sum()

    got = jax.jit(jax.grad(loss(parallel), argnums=(0, 1)))(x, w)
    want = jax.grad(loss(f), argnums=(0, 1))(x, w)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)

    def second(function):
        return lambda x, w: (jax.grad(loss(function))(x, w) ** 2).sum()

    got = jax.jit(jax.grad(second(parallel), argnums=(0, 1)))(x, w)
    want = jax.grad(second(f), argnums=(0, 1))(x, w)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.full
def test_forward_mode():
    _, parallel = convolve("stride", LAYOUTS[0], 0)
    x, w = arrays(LAYOUTS[0], 1)
    check_grads(jax.jit(parallel), (x, w), order=2, modes=["fwd", "rev"], rtol=1e-5)


def test_under_vmap_and_scan():
    f, parallel = convolve("plain", LAYOUTS[0], 0)
    x, w = arrays(LAYOUTS[0], 1)
    many = jnp.stack([w, 2 * w])
    got = jax.jit(jax.vmap(parallel, (None, 0)))(x, many)
    np.testing.assert_allclose(got, jnp.stack([f(x, v) for v in many]), rtol=1e-12)

    def scanned(x):
        return lax.scan(lambda c, v: (c, f(c, v)), x, many)[1].sum(0)

    np.testing.assert_allclose(jaxpar.data_parallel(scanned, x, [0, 1, 2, 3]), scanned(x), rtol=1e-12)


def test_gradients_are_written_in_the_layout_of_the_fast_kernel():
    """Rows first, channels last, kernels in-out: anything else in a branch takes 30 times as long."""
    _, parallel = convolve("plain", LAYOUTS[0], 0)
    x, w = arrays(LAYOUTS[0], 1)
    text = jax.jit(jax.grad(lambda w, x: parallel(x, w).sum())).lower(w, x).as_text()
    layouts = re.findall(r"dim_numbers = (.*?), window", text)
    assert len(layouts) == text.count("stablehlo.convolution(") > 1
    assert set(layouts) == {"[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"}
