"""DataParallel over one axis of 8x8 H100s: the collectives are those of the step written by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hlo import read
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from steps import WRAPPERS

import jaxpar

WIDTH, HIDDEN, ROWS, N = 512, 2048, 512, 8
TX = optax.sgd(0.1, momentum=0.9)
SPECS = {(WIDTH, HIDDEN): P(None, "model"), (HIDDEN, WIDTH): P("model", None)}
BATCH = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)


class Net(nnx.Module):
    """A layer that is split by columns and one that is split by rows: one all-reduce of its outputs."""

    def __init__(self, rngs):
        self.up = nnx.Linear(WIDTH, HIDDEN, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(HIDDEN, WIDTH, rngs=rngs)

    def __call__(self, x):
        return self.down(jax.nn.relu(self.up(x)))


def loss_fn(net, x, y):
    return ((net(x) - y) ** 2).mean()


@pytest.fixture(scope="module")
def mesh():
    devices = np.array(jaxpar.topology("h100", hosts=1, devices=N * N)).reshape(N, N)
    return Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def on(mesh, x, spec=None):
    spec = SPECS.get(x.shape, P()) if spec is None else spec
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))


def net_on(mesh):
    net = nnx.eval_shape(lambda: Net(nnx.Rngs(0)))
    nnx.update(net, jax.tree.map(lambda x: on(mesh, x), nnx.state(net)))
    return net


def by_hand(mesh):
    graphdef, state = nnx.split(net_on(mesh))
    moments = jax.tree.map(lambda x: on(mesh, x), jax.eval_shape(TX.init, state))

    def step(state, moments, x, y):
        loss, gradients = jax.value_and_grad(lambda s: loss_fn(nnx.merge(graphdef, s), x, y))(state)
        loss, gradients = jax.lax.pmean((loss, gradients), "data")
        updates, moments = TX.update(gradients, moments, state)
        return loss, optax.apply_updates(state, updates), moments

    specs = {"in_specs": (P(), P(), P("data"), P("data")), "out_specs": P(), "check_vma": False}
    step = jax.shard_map(step, mesh=mesh, axis_names={"data"}, **specs)
    options = {"xla_gpu_autotune_level": "0"}
    run = jax.jit(step, donate_argnums=(0, 1), compiler_options=options)
    x = on(mesh, BATCH, P("data"))
    return read(run.lower(state, moments, x, x).compile().as_text())


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_collectives_are_those_of_the_step_by_hand(wrapper, mesh):
    net = WRAPPERS[wrapper](net_on(mesh), mesh=mesh, axis="data")
    optimizer = nnx.eval_shape(lambda net: nnx.Optimizer(net, TX, wrt=nnx.Param), net)
    step = jaxpar.train_step(net, optimizer, loss_fn, on_nonfinite="ignore")
    program = read(step.lower(BATCH, BATCH).compile().as_text())
    activations = 4 * (ROWS // N) * WIDTH
    gradients = 4 * (2 * WIDTH * HIDDEN // N + WIDTH + 1)
    assert program.collectives == [("all-reduce", activations), ("all-reduce", gradients)]
    assert program.collectives == by_hand(mesh).collectives


def test_a_net_that_is_not_split_exchanges_whole_gradients(mesh):
    """The comparison can fail: without the split the gradients are eight times as large."""
    net = jaxpar.DataParallel(nnx.eval_shape(lambda: Net(nnx.Rngs(0))), mesh=mesh, axis="data")
    optimizer = nnx.eval_shape(lambda net: nnx.Optimizer(net, TX, wrt=nnx.Param), net)
    step = jaxpar.train_step(net, optimizer, loss_fn, on_nonfinite="ignore")
    program = read(step.lower(BATCH, BATCH).compile().as_text())
    assert program.collectives == [("all-reduce", 4 * (2 * WIDTH * HIDDEN + WIDTH + 1))]
