"""step.compile: the calls that follow compile nothing, with every wrapper, accumulation and uneven rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxpar
from jaxpar.errors import BatchError

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compiled():
    """The names of the events of this test in which XLA has compiled a program."""
    events: list[str] = []

    def listen(name, seconds, **details):
        if name == COMPILED:
            events.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


def plain(net):
    return net


def data_parallel(net):
    return jaxpar.DataParallel(net, [0, 1])


def distributed(net):
    return jaxpar.DistributedDataParallel(net, [0, 1])


def divided(net):
    return jaxpar.DistributedDataParallel(net, [0, 1], shard_optimizer=True)


def step_of(wrap, **options):
    net = wrap(nnx.Sequential(nnx.Linear(3, 5, rngs=nnx.Rngs(0)), nnx.BatchNorm(5, rngs=nnx.Rngs(0))))
    optimizer = nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param)
    return jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 3).mean(), **options)


@pytest.mark.full
@pytest.mark.sampled(5)
@pytest.mark.parametrize("rows", [8, 7])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("wrap", [plain, data_parallel, distributed, divided], ids=lambda wrap: wrap.__name__)
def test_the_calls_that_follow_compile_nothing(wrap, accumulate, rows, compiled):
    x = np.random.RandomState(0).randn(rows, 3).astype(np.float32)
    # What placing a batch and reading a loss compile is compiled before, by another step.
    other = step_of(wrap, accumulate=accumulate)
    losses = [float(other(x)) for _ in range(2 * accumulate)]
    step = step_of(wrap, accumulate=accumulate)
    text = step.compile(jax.ShapeDtypeStruct(x.shape, x.dtype)).as_text()
    assert "ENTRY" in text
    assert step.calls == 0
    del compiled[:]
    assert float(step(x)) == losses[0]
    assert not compiled
    assert [float(step(x)) for _ in range(2 * accumulate - 1)] == losses[1:]
    assert not compiled
    step(x[:6])
    assert compiled  # the listener hears


def test_bad_shapes_are_refused_as_in_a_call():
    with pytest.raises(BatchError, match="the batch is empty"):
        step_of(plain).compile(jnp.ones((0, 3)))
