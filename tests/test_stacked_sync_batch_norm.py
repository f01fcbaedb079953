"""convert_sync_batchnorm of layers stacked by nnx.vmap or nnx.scan: shapes; training equals one device."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_trees
from flax import nnx

import jaxpar
from jaxpar.errors import CollectiveError
from jaxpar.nn import BatchNorm

C, LAYERS, STEPS = 4, 3, 3
X = 5 + np.random.RandomState(0).randn(STEPS, 10, C)


class Block(nnx.Module):
    def __init__(self, flax, rngs):
        self.dense = nnx.Linear(C, C, use_bias=False, rngs=rngs, param_dtype=jnp.float64)
        options = {"use_fast_variance": False, "momentum": 0.9} if flax else {"momentum": None}
        layer = nnx.BatchNorm if flax else BatchNorm
        self.norm = layer(C, param_dtype=jnp.float64, rngs=rngs, **options)
        for statistics in (self.norm.mean, self.norm.var):
            statistics.set_value(statistics[...].astype(jnp.float64))

    def __call__(self, x):
        return jnp.tanh(self.norm(self.dense(x)))


class Stacked(nnx.Module):
    """`layers` blocks, made by nnx.vmap; run side by side (vmap) or one after the other (scan)."""

    def __init__(self, how, flax=True, layers=(LAYERS,)):
        make = lambda rngs: Block(flax, rngs)  # noqa: E731
        for _ in layers:
            make = nnx.vmap(make, in_axes=(0,), out_axes=0)
        self.blocks = make(nnx.Rngs(0).split(layers[0] if len(layers) == 1 else layers))
        self.how = how

    def __call__(self, x):
        if self.how == "vmap":
            return nnx.vmap(lambda block, x: block(x), in_axes=(0, None))(self.blocks, x).mean(0)
        return nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.blocks)


def state_of(net):
    return {".".join(map(str, path)): np.asarray(v[...]) for path, v in nnx.to_flat_state(nnx.state(net))}


def train(net, batches):
    optimizer = nnx.Optimizer(net, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    step = jaxpar.train_step(net, optimizer, lambda net, x: ((net(x) - 0.3) ** 2).mean())
    return [float(step(x)) for x in batches]


@pytest.mark.parametrize(("how", "B"), [("vmap", 8), ("vmap", 10), ("vmap", 3), ("scan", 8)])
@pytest.mark.parametrize("flax", [True, False], ids=["flax", "jaxpar"])
def test_training_equals_one_device(how, B, flax):
    alone, net = (jaxpar.convert_sync_batchnorm(Stacked(how, flax)) for _ in range(2))
    np.testing.assert_allclose(alone(X[0, :B]), Stacked(how, flax)(X[0, :B]), rtol=1e-10)
    alone = jaxpar.convert_sync_batchnorm(Stacked(how, flax))
    batches = X[:, :B]
    losses = train(jaxpar.DataParallel(net, [0, 1, 2, 3]), batches)
    np.testing.assert_allclose(losses, train(alone, batches), rtol=1e-10)
    got, want = state_of(net), state_of(alone)
    assert_equal_trees("state", got, want, 1e-10)
    assert got["blocks.norm.mean"].shape == (LAYERS, C)
    np.testing.assert_array_equal(got["blocks.norm.num_batches_tracked"], [STEPS] * LAYERS)


def test_a_loop_with_other_numbers_of_rows_is_refused():
    """Sums are not taken out of loops; in an uneven batch devices take other branches."""
    net = jaxpar.DataParallel(jaxpar.convert_sync_batchnorm(Stacked("scan")), [0, 1, 2, 3])
    with pytest.raises(CollectiveError, match=r"psum in scan\).*Make B a multiple of the number of devices"):
        net(X[0])


@pytest.mark.parametrize("layers", [(3,), (2, 3)])
def test_counts_have_the_stacked_axes(layers):
    net = jaxpar.convert_sync_batchnorm(Stacked("vmap", layers=layers))
    assert net.blocks.norm.num_batches_tracked.shape == layers
    assert net.blocks.norm.num_batches_tracked[...].dtype == jnp.int32
    ours = jaxpar.convert_sync_batchnorm(Stacked("vmap", False, layers))
    assert ours.blocks.norm.num_batches_tracked.shape == layers


def test_where_channels_are_not_last_nothing_counts():
    class Wide(nnx.Module):
        def __init__(self):
            self.norms = nnx.vmap(lambda rngs: nnx.BatchNorm(C, rngs=rngs), in_axes=(0,), out_axes=1)(
                nnx.Rngs(0).split(LAYERS)
            )

        def __call__(self, x):
            return nnx.vmap(lambda norm, x: norm(x), in_axes=(1, None))(self.norms, x)

    net, x = Wide(), X[0, :8].astype(np.float32)
    want = net(x)
    net = jaxpar.convert_sync_batchnorm(Wide())
    assert net.norms.num_batches_tracked is None
    np.testing.assert_allclose(jaxpar.DataParallel(net, [0, 1]).module(x), want, rtol=1e-4, atol=1e-5)
