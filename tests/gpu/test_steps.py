"""A step on all devices of the host: the numbers of one device, donated buffers, uneven batches."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import jaxpar

TOLERANCE = 2e-5
"""Of the largest value: float32, whose sums come in another order on several devices."""


class Net(nnx.Module):
    def __init__(self):
        self.conv = nnx.Conv(3, 8, (3, 3), rngs=nnx.Rngs(0))
        self.head = nnx.Linear(8, 5, rngs=nnx.Rngs(1))

    def __call__(self, x):
        return self.head(nnx.relu(self.conv(x)).mean((1, 2)))


def mse(net, x, y):
    return ((net(x) - y) ** 2).mean()


def batch(rows):
    random = np.random.default_rng(0)
    return random.random((rows, 9, 9, 3), np.float32), random.random((rows, 5), np.float32)


def optimizer_of(net):
    return nnx.Optimizer(net, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)


def trained(net, rows):
    """Three losses, and the parameters after them."""
    step = jaxpar.train_step(net, optimizer_of(net), mse)
    losses = [float(step(*batch(rows))) for _ in range(3)]
    return losses, jax.device_get(jax.tree.leaves(nnx.state(net, nnx.Param)))


def by_hand(rows):
    """The same on one device, in plain JAX."""
    graphdef, params = nnx.split(Net())
    tx = optax.sgd(0.1, momentum=0.9)
    opt, losses = tx.init(params), []
    loss_and_gradients = jax.jit(jax.value_and_grad(lambda p, x, y: mse(nnx.merge(graphdef, p), x, y)))
    for _ in range(3):
        loss, gradients = loss_and_gradients(params, *batch(rows))
        updates, opt = tx.update(gradients, opt)
        params = optax.apply_updates(params, updates)
        losses.append(float(loss))
    return losses, jax.device_get(jax.tree.leaves(params))


def assert_same(got, want):
    """Losses and parameters agree, relative to the largest value of each array."""
    arrays = [(np.asarray(a), np.asarray(b)) for a, b in zip(got[1], want[1], strict=True)]
    for a, b in [(np.asarray(got[0]), np.asarray(want[0])), *arrays]:
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= TOLERANCE * np.abs(b).max(), (a, b)


WRAPPERS = {"DataParallel": jaxpar.DataParallel, "DistributedDataParallel": jaxpar.DistributedDataParallel}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_step_on_all_devices_is_the_one_by_hand(wrap, devices):
    rows = 4 * len(devices)
    assert_same(trained(wrap(Net()), rows), by_hand(rows))


def test_an_uneven_batch_is_the_one_by_hand(devices):
    rows = 4 * len(devices) - 1
    assert_same(trained(jaxpar.DataParallel(Net()), rows), by_hand(rows))


@pytest.mark.parametrize("fault", [(0, 0), (1, 0)], ids=["a loss", "a parameter"])
def test_a_planted_difference_is_found(fault):
    want = by_hand(4)
    part, i = fault
    got = [list(want[0]), list(want[1])]
    got[part][i] = got[part][i] * 1.001
    with pytest.raises(AssertionError):
        assert_same(got, want)


def test_the_old_buffers_are_given_up(devices):
    net = jaxpar.DataParallel(Net())
    step = jaxpar.train_step(net, optimizer_of(net), mse)
    step(*batch(4 * len(devices)))
    before = jax.tree.leaves(nnx.state(net, nnx.Param))
    jax.block_until_ready(step(*batch(4 * len(devices))))
    assert all(x.is_deleted() for x in before)
