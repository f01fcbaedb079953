"""shard_optimizer in `estimate` and `memory_report`: the bytes that a device of the real step holds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxpar

PARAMETERS = (5 * 13, 13, 13 * 3, 3)
F32 = 4


class Net(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(5, 13, rngs=rngs, param_dtype=jnp.float32)
        self.last = nnx.Linear(13, 3, rngs=rngs, param_dtype=jnp.float32)

    def __call__(self, x):
        return self.last(nnx.tanh(self.first(x)))


def loss_fn(net, x):
    return (net(x) ** 2).mean()


def rows(b):
    return jax.ShapeDtypeStruct((b, 5), jnp.float32)


def wrapped(shard, devices=8):
    return jaxpar.DistributedDataParallel(Net(), range(devices), shard_optimizer=shard)


def adam_on(devices):
    """Adam's bytes on a device, counted by hand: its part of two moments, and a count."""
    return 2 * F32 * sum(-(-n // devices) for n in PARAMETERS) + 4


def estimated(net, **options):
    return jaxpar.estimate(net, optax.adam(1e-3), loss_fn, rows(4), device="l4", **options)


def held_by(device, optimizer):
    shards = [s for x in jax.tree.leaves(nnx.state(optimizer).opt_state) for s in x.addressable_shards]
    return sum(s.data.nbytes for s in shards if s.device == device)


def reported(net, optimizer=None, b=24):
    return jaxpar.memory_report(net, rows(b), optimizer=optimizer or optax.adam(1e-3))


@pytest.mark.parametrize("devices", [2, 8, 1000])
def test_an_estimate_counts_a_part(devices):
    plain, divided = (estimated(wrapped(shard), devices=devices).memory for shard in (False, True))
    assert plain.optimizer == adam_on(1)
    assert divided.optimizer == adam_on(devices)
    assert plain.parameters == divided.parameters == F32 * sum(PARAMETERS)


def test_an_estimate_saves_what_the_compiled_step_saves():
    saved = []
    for shard in (False, True):
        net = wrapped(shard, 2)
        step = jaxpar.train_step(net, nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param), loss_fn)
        compiled = step.lower(np.ones((8, 5), np.float32)).compile().memory_analysis()
        memory = estimated(net, devices=2).memory
        saved.append((compiled.argument_size_in_bytes, memory.parameters + memory.optimizer + memory.batch))
    compiled_bytes, estimated_bytes = (first - second for first, second in zip(*saved, strict=True))
    assert compiled_bytes == estimated_bytes == adam_on(1) - adam_on(2)


def test_what_an_estimate_sends():
    plain, divided = (estimated(wrapped(shard), devices=8) for shard in (False, True))
    kinds = [{s.name.split(".")[0].replace("_", "-") for s in e.schedule.exchanges} for e in (plain, divided)]
    assert kinds[0] == {"all-reduce"}
    assert {"reduce-scatter", "all-gather"} <= kinds[1]


def test_a_report_counts_a_part():
    plain, divided = reported(wrapped(False)), reported(wrapped(True))
    assert [d.optimizer for d in plain.jaxpar] == [adam_on(1)] * 8
    assert [d.optimizer for d in divided.jaxpar] == [adam_on(8)] * 8
    assert plain.torch == divided.torch
    assert plain.torch[0].optimizer == adam_on(1)
    saved = plain.compiled_step - divided.compiled_step
    assert saved > 0.5 * (adam_on(1) - adam_on(8))
    assert divided.shard_optimizer
    assert not plain.shard_optimizer


def test_a_report_names_the_division():
    plain, divided = (reported(wrapped(shard)) for shard in (False, True))
    assert "with shard_optimizer" in divided.table()
    assert "with shard_optimizer" not in plain.table()
    assert "part of every array" in divided.as_dict()["sources"]["jaxpar"]
    assert "is replicated like" in plain.as_dict()["sources"]["jaxpar"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("b", [24, 11, 5])
def test_both_are_what_the_devices_hold(b):
    net = wrapped(True)
    optimizer = nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)
    jaxpar.train_step(net, optimizer, loss_fn)(np.ones((b, 5), np.float32))
    held = held_by(jax.devices()[3], optimizer)
    # The optimizer, whose arrays are divided by now, is given as it is.
    assert held == reported(net, optimizer, b).jaxpar[3].optimizer
    assert held == jaxpar.estimate(net, optimizer, loss_fn, rows(b), device="l4").memory.optimizer


def test_an_optimizer_that_cannot_be_divided_is_refused():
    with pytest.raises(jaxpar.errors.OptimizerError, match="shard_optimizer=True divides"):
        jaxpar.estimate(wrapped(True), jaxpar.optim.adafactor(), loss_fn, rows(4), device="l4")


@pytest.mark.parametrize("name", ["shard_optimizer", "comm_hook", "devices"])
def test_data_parallel_takes_no_other_argument(name):
    with pytest.raises(TypeError, match=f"unexpected argument {name}.*DistributedDataParallel"):
        jaxpar.DataParallel(Net(), **{name: True})
