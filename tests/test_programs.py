"""Memory is given back: programs, and the losses and arrays in them, go with the object that runs them."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxpar
from jaxpar._parallel.programs import Programs

X, Y = np.ones((8, 3)), np.ones((8, 1))
DEVICES = [0, 1, 2, 3]


def plain(net):
    return net


def data_parallel(net):
    return jaxpar.DataParallel(net, DEVICES)


def distributed(net):
    return jaxpar.DistributedDataParallel(net, DEVICES)


class Loss:
    """A loss that holds an array, as one that weighs classes does."""

    def __init__(self):
        self.weights = jnp.arange(1000.0)

    def __call__(self, net, x, *y):
        return (net(x) ** 2).mean() + 0 * self.weights.sum()


def train(net, loss, B):
    step = jaxpar.train_step(net, nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param), loss, accumulate=2)
    for _ in range(3):
        step(X[:B], Y[:B])
    return step


def value_and_grad(net, loss, B):
    f = net.value_and_grad(loss)
    f(X[:B], Y[:B])
    return f


def evaluate(net, loss, B):
    f = jaxpar.eval_step(net, loss)
    f(X[:B])
    return f


def call(net, loss, B):
    function = jaxpar.DataParallel(lambda x: loss(jnp.sin, x)[None], DEVICES)
    function(X[:B])
    return function


USES = [
    (train, plain),
    (train, data_parallel),
    (train, distributed),
    (value_and_grad, distributed),
    (evaluate, plain),
    (evaluate, data_parallel),
    (evaluate, distributed),
    (call, plain),
]


def left(use, kind, B):
    """What is still there of a net, a loss and the loss's array when their user has dropped them."""
    loss = Loss()
    net = kind(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
    step = use(net, loss, B)
    watched = {"net": net, "loss": loss, "weights": loss.weights, "step": step}
    seen = {name: weakref.ref(thing) for name, thing in watched.items()}
    del watched, loss, net, step
    gc.collect()
    return [name for name, thing in seen.items() if thing() is not None]


@pytest.mark.full
@pytest.mark.sampled(5)
@pytest.mark.parametrize("B", [8, 7], ids=["even", "uneven"])
@pytest.mark.parametrize(("use", "kind"), USES, ids=lambda f: f.__name__)
def test_memory_is_given_back(use, kind, B):
    assert left(use, kind, B) == []


@pytest.mark.full
def test_a_cache_of_the_module_is_found(monkeypatch):
    kept = []
    call_ = Programs.__call__
    monkeypatch.setattr(Programs, "__call__", lambda self, *what: kept.append(what) or call_(self, *what))
    assert left(train, distributed, 8) == ["loss", "weights"]


@pytest.mark.full
def test_programs_without_an_owner_are_cleared():
    def keep():
        loss = Loss()
        jaxpar.data_parallel(lambda x: loss(jnp.sin, x)[None], X, DEVICES)
        return weakref.ref(loss)

    loss = keep()
    gc.collect()
    assert loss() is not None
    jaxpar.clear_caches()
    gc.collect()
    assert loss() is None


def test_programs_are_no_part_of_what_a_module_is():
    """Two wrappers of equal modules are one program to nnx.jit; a copy has programs of its own."""
    traces = []

    @nnx.jit
    def f(net, x):
        traces.append(1)
        return net(x)

    nets = [data_parallel(nnx.Linear(3, 1, rngs=nnx.Rngs(seed))) for seed in (0, 1)]
    for net in nets:
        f(net, X)
    assert len(traces) == 1
    for other in (copy.deepcopy(nets[0]), pickle.loads(pickle.dumps(nets[0]))):
        assert other.programs is not nets[0].programs
        np.testing.assert_array_equal(other(X), nets[0](X))
