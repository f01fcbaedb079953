"""The draws of layers: JAX's own numbers, without a program for every shape."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpar.nn import _layer
from jaxpar.nn import channels_first as nn

SHAPES = st.lists(st.integers(0, 9), max_size=5).map(tuple)
TYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


def same(key, shape, dtype, bound=0.3):
    ours = _layer.drawn(key, shape, dtype, bound)
    jaxs = jax.random.uniform(key, shape, dtype, -bound, bound)
    assert ours.dtype == jaxs.dtype
    assert ours.shape == jaxs.shape
    assert np.asarray(ours).tobytes() == np.asarray(jaxs).tobytes()


@pytest.mark.full
@settings(max_examples=25, deadline=None)
@given(SHAPES, st.sampled_from(TYPES), st.integers(0, 2**32 - 1))
def test_the_numbers_are_those_of_jax(shape, dtype, seed):
    same(jax.random.key(seed), shape, dtype)


@pytest.mark.parametrize("size", [_layer.PROGRAMS[0], _layer.PROGRAMS[0] + 1, _layer.PROGRAMS[-1] + 3])
def test_beyond_every_size_of_program(size):
    same(jax.random.key(1), (size,), jnp.float32)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_generators_whose_numbers_depend_on_the_shape(impl):
    same(jax.random.key(1, impl=impl), (5, 7), jnp.float32)


def test_keys_of_the_older_kind():
    same(jax.random.PRNGKey(1), (5, 7), jnp.float32)


def test_a_generator_that_does_not_count():
    with jax.threefry_partitionable(False):
        same(jax.random.key(1), (5, 7), jnp.float32)


def test_while_it_is_traced():
    shapes = nnx.eval_shape(lambda: nn.Linear(3, 5, rngs=nnx.Rngs(0)))
    assert shapes.kernel.shape == (3, 5)
    inside = jax.jit(lambda key: _layer.drawn(key, (3, 5), jnp.float32, 0.3))(jax.random.key(2))
    np.testing.assert_array_equal(inside, _layer.drawn(jax.random.key(2), (3, 5), jnp.float32, 0.3))


@pytest.mark.full
def test_many_shapes_are_one_program(monkeypatch):
    drawn = []
    own = jax.random.uniform
    monkeypatch.setattr(
        jax.random, "uniform", lambda key, shape, *more: drawn.append(shape) or own(key, shape, *more)
    )
    for features in range(1, 20):
        kernel = nn.Linear(features, 2 * features, rngs=nnx.Rngs(0)).kernel
        assert math.prod(kernel.shape) == 2 * features**2
    assert set(drawn) == {(_layer.PROGRAMS[0],)}
