"""Embedding and EmbeddingBag against torch's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxpar
from jaxpar.nn import functional as F

torch = pytest.importorskip("torch")
from against_torch.cases.embedding import CASES, REFUSED  # noqa: E402
from against_torch.layers import difference, refusal  # noqa: E402

torch.set_num_threads(1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case):
    difference(case)


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_refused(row):
    refusal(row)


@pytest.mark.full
def test_indices_that_are_none_give_nan():
    table = jnp.ones((4, 2))
    rows = F.embedding(jnp.array([0, 3, 4, -1]), table)
    np.testing.assert_array_equal(np.isnan(rows).all(1), [False, False, True, True])
    assert np.isnan(F.embedding_bag(jnp.array([[0, -1], [0, 1]]), table)[0]).all()
    long = F.embedding_renorm(jnp.array([1, -1, 9]), 2 * table, 1.0)
    np.testing.assert_allclose(jnp.linalg.norm(long, axis=1), [8**0.5, 1, 8**0.5, 8**0.5], rtol=1e-6)


@pytest.mark.full
def test_the_frequency_of_an_index_is_its_own():
    """The gradient of a bag is that of its rows.

    torch 2.13 on the CPU divides a bag's by that of another index: it looks the i-th of the different
    indices up at place i of the sorted ones. From 2.14 it is right.
    """
    x = np.array([[1, 1, 1], [1, 2, 1]])

    def by_torch(layer):
        layer.weight.data[:] = 1
        layer(torch.tensor(x)).sum().backward()
        return layer.weight.grad[:, 0].numpy()

    bag = by_torch(torch.nn.EmbeddingBag(4, 1, mode="sum", scale_grad_by_freq=True).double())
    rows = by_torch(torch.nn.Embedding(4, 1, scale_grad_by_freq=True).double())
    ours = jax.grad(
        lambda table: F.embedding_bag(jnp.asarray(x), table, mode="sum", scale_grad_by_freq=True).sum()
    )(jnp.ones((4, 1)))[:, 0]
    np.testing.assert_allclose(ours, rows, rtol=1e-15)
    np.testing.assert_allclose(rows, [0, 1, 1, 0], rtol=1e-15)
    wrong = torch.__version__.startswith("2.13")
    np.testing.assert_allclose(bag, [0, 1, 0.2, 0] if wrong else rows, rtol=1e-15)


def test_the_last_offset_is_an_end():
    """torch's float32 code stops there, its float64 code goes on to the end of the input."""
    x, offsets = np.array([1, 2, 3, 3]), np.array([0, 1, 3])
    table = np.random.RandomState(0).randn(4, 2)
    want = torch.nn.functional.embedding_bag(
        torch.tensor(x), torch.tensor(table, dtype=torch.float32), torch.tensor(offsets), mode="sum",
        include_last_offset=True,
    )  # fmt: skip
    got = F.embedding_bag(
        jnp.asarray(x),
        jnp.asarray(table, jnp.float32),
        jnp.asarray(offsets),
        mode="sum",
        include_last_offset=True,
    )
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-6)
    np.testing.assert_allclose(got, [table[1], table[2] + table[3]], rtol=1e-6)


def test_padding_rows_begin_as_zeros():
    for layer in (
        jaxpar.nn.Embedding(4, 3, padding_idx=-2, rngs=nnx.Rngs(0)),
        jaxpar.nn.EmbeddingBag(4, 3, padding_idx=2, rngs=nnx.Rngs(0)),
    ):
        np.testing.assert_array_equal((layer.embedding[...] == 0).all(1), [False, False, True, False])


@pytest.mark.parametrize("freeze", [True, False])
def test_a_table_that_is_there(freeze):
    table = np.arange(8.0, dtype=np.float32).reshape(4, 2)
    torchs = torch.nn.Embedding.from_pretrained(torch.tensor(table), freeze=freeze, padding_idx=0)
    layer = jaxpar.nn.Embedding.from_pretrained(table, freeze=freeze, padding_idx=0)
    np.testing.assert_array_equal(layer(np.array([0, 3])), torchs(torch.tensor([0, 3])).detach().numpy())
    assert isinstance(layer.embedding, nnx.Param) is torchs.weight.requires_grad is not freeze
    with pytest.raises(ValueError, match="has 1 axes; it needs two"):
        jaxpar.nn.Embedding.from_pretrained(table[0])


def test_the_table_has_variance_one():
    layer = jaxpar.nn.Embedding(500, 200, rngs=nnx.Rngs(0))
    assert abs(float(layer.embedding[...].std()) - 1) < 0.01


def test_values_of_offsets_are_looked_at_outside_of_jit_only():
    table = jnp.ones((4, 2))
    bags = jax.jit(lambda x, offsets: F.embedding_bag(x, table, offsets, mode="sum"))
    np.testing.assert_array_equal(bags(jnp.array([1, 2, 3]), jnp.array([0, 2]))[:, 0], [2, 1])


@pytest.mark.parametrize("host", [np.array, jnp.array])
def test_offsets_that_fall_are_refused(host):
    with pytest.raises(ValueError, match="embedding_bag: offsets fall from 3 to 1"):
        F.embedding_bag(jnp.arange(4), jnp.ones((4, 2)), host([0, 0, 3, 1]))


def test_the_output_has_the_dtype_asked_for():
    layer = jaxpar.nn.Embedding(4, 3, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert layer.embedding[...].dtype == jnp.float32
    assert layer(jnp.array([1])).dtype == jnp.bfloat16


@pytest.mark.parametrize("index", [4, -1, 2**32 + 1])
@pytest.mark.parametrize("x64", [False, True])
def test_an_index_of_a_host_array_beyond_the_table(index, x64):
    table = jnp.ones((4, 2), jnp.float32)
    with jax.enable_x64(x64):
        for f in (F.embedding, F.embedding_bag):
            with pytest.raises(
                IndexError, match=f"index out of range in self: {index} of a table with 4 rows"
            ):
                f(np.array([[1, index]]), table)
        with pytest.raises(IndexError, match=f"embedding_renorm: index out of range in self: {index}"):
            F.embedding_renorm(np.array([1, index]), table, 1.0)
        with pytest.raises(IndexError, match=f"index out of range in self: {index}"):
            F.embedding(np.int64(index), table)


def test_indices_that_are_no_array():
    with pytest.raises(TypeError, match="Expected 'indices' to be integers; but got a list"):
        F.embedding([1, 2], jnp.ones((4, 2)))


def test_an_offset_beyond_jaxs_integers():
    with jax.enable_x64(False), pytest.raises(ValueError, match=f"input's length 3 but got {2**32 + 1}"):
        F.embedding_bag(np.array([1, 2, 3]), jnp.ones((4, 2), jnp.float32), np.array([0, 2**32 + 1, 2]))
