"""BatchNorm in layers stacked by nnx.vmap or nnx.scan: synchronised, and each replica's own."""

from __future__ import annotations

import jax
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


def loss_of(net, x):
    return ((net(x) - 0.3) ** 2).mean()


def train(net, batches):
    optimizer = nnx.Optimizer(net, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    step = jaxpar.train_step(net, optimizer, loss_of)
    return [float(step(x)) for x in batches]


@pytest.mark.full
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


@pytest.mark.full
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


def by_hand(net, batches, mean_of_means):
    """Each replica's rows by themselves: the mean of its loss and gradients, and replica 0's statistics."""
    optimizer = nnx.Optimizer(net, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    losses = []
    for x in batches:
        b = -(-len(x) // 3)
        pieces = [x[i : i + b] for i in range(0, len(x), b)]
        copies = [nnx.clone(net) for _ in pieces]
        results = [nnx.value_and_grad(loss_of)(*pair) for pair in zip(copies, pieces, strict=True)]
        weights = [1 / len(pieces) if mean_of_means else len(piece) / len(x) for piece in pieces]
        weighted = [jax.tree.map(lambda a, w=w: a * w, r) for r, w in zip(results, weights, strict=True)]
        loss, gradients = jax.tree.map(lambda *terms: sum(terms), *weighted)
        nnx.update(net, nnx.state(copies[0], nnx.BatchStat))
        optimizer.update(net, gradients)
        losses.append(float(loss))
    return losses


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("wrapper", [jaxpar.DataParallel, jaxpar.DistributedDataParallel])
@pytest.mark.parametrize("B", [10, 2])
@pytest.mark.parametrize("how", ["vmap", "scan"])
def test_filling_reaches_no_statistics_of_a_replica(how, B, wrapper):
    """Of 10 rows the last replica has 2 and 2 to fill up; one row's copies would have its mean."""
    net, alone = Stacked(how), Stacked(how)
    losses = train(wrapper(net, [0, 1, 2]), X[:, :B])
    want = by_hand(alone, X[:, :B], wrapper is jaxpar.DistributedDataParallel)
    np.testing.assert_allclose(losses, want, rtol=1e-10)
    assert_equal_trees("state", state_of(net), state_of(alone), 1e-10)
