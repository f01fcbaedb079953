"""Laws that hold for every shape: gather undoes scatter, N replicas equal one, both backends agree."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxpar

LEAF = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=3))
SHAPES = st.lists(st.integers(1, 3), min_size=0, max_size=2)


@st.composite
def batches(draw):
    """A tree with arrays that share B and dim, and other leaves."""
    B, dim = draw(st.integers(0, 13)), draw(st.integers(0, 2))
    counter = iter(range(100))

    def array(rest):
        before = [2, 1][:dim]
        shape = (*before, B, *rest)
        return np.arange(np.prod(shape), dtype=[np.float64, np.int32, np.float32][next(counter) % 3]).reshape(
            shape
        )

    leaves = st.one_of(SHAPES.map(array), LEAF)
    tree = st.recursive(
        leaves,
        lambda t: st.one_of(
            st.lists(t, max_size=3), st.tuples(t, t), st.dictionaries(st.sampled_from("abc"), t, max_size=3)
        ),
        max_leaves=6,
    )
    return draw(tree), B, dim


def arrays(tree):
    return [x for x in jax.tree.leaves(tree) if isinstance(x, np.ndarray | jax.Array)]


@pytest.mark.full
@given(batches(), st.integers(2, 8))
@settings(max_examples=60, deadline=None)
def test_gather_undoes_scatter(batch, N):
    tree, B, dim = batch
    shards = jaxpar.scatter(tree, range(N), dim)
    if arrays(tree):
        assert sum(shards.sizes) == B
    pieces = [arrays(piece) for piece in shards]
    for i, x in enumerate(arrays(tree)):
        joined = jaxpar.gather([p[i] for p in pieces], 0, dim)
        np.testing.assert_array_equal(joined, x)
        assert joined.dtype == x.dtype
    for piece in shards:
        assert jax.tree.structure(piece) == jax.tree.structure(tree)
        others = [
            (a, b)
            for a, b in zip(jax.tree.leaves(piece), jax.tree.leaves(tree), strict=True)
            if not hasattr(b, "shape")
        ]
        assert all(a is b for a, b in others)


@pytest.mark.full
@given(st.integers(0, 20), st.integers(2, 8), st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_rows_do_not_care_about_replicas(B, N, seed):
    x = np.random.RandomState(seed).randn(B, 3)
    f = jaxpar.DataParallel(row_wise, range(N))
    np.testing.assert_allclose(f(x)["y"], row_wise(x)["y"], rtol=1e-12)
    np.testing.assert_array_equal(f(x)["x"], x)


def row_wise(x):
    return {"y": (x**2).sum(1), "x": x}


def across_rows(x):
    return x - x.mean(0), (x * x).max(0, keepdims=True)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("N", [2, 3, 4, 8])
@pytest.mark.parametrize("B", [1, 2, 3, 5, 8, 9, 17])
def test_backends_agree_bit_for_bit(N, B, jit):
    x = np.random.RandomState(B).randn(B, 3)
    nets = [jaxpar.DataParallel(across_rows, range(N), backend=b) for b in ("shard_map", "pmap")]
    one, two = (jax.jit(n)(x) if jit else n(x) for n in nets)
    jax.tree.map(np.testing.assert_array_equal, one, two)


@pytest.mark.parametrize("N", [2, 3, 4, 8])
@pytest.mark.parametrize("B", [1, 2, 3, 5, 8, 9, 17])
def test_each_replica_sees_its_own_rows_and_nothing_else(N, B):
    """Cross-row results equal those of the pieces, so no padding was there."""
    x = np.random.RandomState(B).randn(B, 3)
    pieces = np.split(x, np.cumsum(jaxpar.scatter(x, range(N)).sizes)[:-1])
    want = [
        np.concatenate(p)
        for p in zip(*[(p - p.mean(0), (p * p).max(0, keepdims=True)) for p in pieces], strict=True)
    ]
    for got, w in zip(jaxpar.data_parallel(across_rows, x, range(N)), want, strict=True):
        np.testing.assert_allclose(got, w, rtol=1e-12, atol=1e-14)
