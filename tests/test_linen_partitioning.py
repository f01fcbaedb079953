"""Linen's partitioning metadata under the wrappers: names of axes that the replicas' mesh does not have."""

from __future__ import annotations

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

import jaxpar
from jaxpar._parallel.modules.linen_view import without_absent_axes

IDS = [0, 1]
X = np.random.RandomState(0).randn(8, 4)
INIT = nn.initializers.lecun_normal()
RULES = (("embed", "model"), ("hidden", None))


class Dense(nn.Module):
    logical: bool = False

    @nn.compact
    def __call__(self, x, _=None):
        mark = nn.with_logical_partitioning if self.logical else nn.with_partitioning
        names = ("embed", "hidden") if self.logical else (None, ("model", "fsdp"))
        dense = nn.Dense(4, kernel_init=mark(INIT, names), param_dtype=jnp.float64)
        return jnp.tanh(dense(x)), None


class Stacked(nn.Module):
    """nn.scan adds an axis of its own to the names."""

    logical: bool = False

    @nn.compact
    def __call__(self, x):
        scan = nn.scan(
            nn.remat(Dense),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=3,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        return scan(self.logical)(x, None)[0]


class Net(nn.Module):
    logical: bool = False

    @nn.compact
    def __call__(self, x):
        return Stacked(self.logical)(Dense(self.logical)(x)[0])


def loss_fn(net, x):
    return (net(x) ** 2).mean()


def train(net, freeze):
    variables = net.init(jax.random.key(0), X)
    variables = flax.core.freeze(variables) if freeze else variables
    state = TrainState.create(apply_fn=None, params=variables["params"], tx=optax.sgd(0.1))
    form = jax.tree.structure(state.params)
    step = jaxpar.train_step(net, state, loss_fn)
    losses = [float(step(X)) for _ in range(2)]
    assert jax.tree.structure(step.state.params) == form  # boxes stay
    return losses, [np.asarray(x) for x in jax.tree.leaves(step.state.params)]


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("logical", [False, True])
@pytest.mark.parametrize("wrap", [jaxpar.DataParallel, jaxpar.DistributedDataParallel])
def test_training_equals_one_device(wrap, logical, freeze):
    with nn.logical_axis_rules(RULES):
        want = train(Net(logical), freeze)
        got = train(wrap(Net(logical), IDS), freeze)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.parametrize("B", [8, 7])
def test_gradients_by_hand_keep_their_boxes(B):
    params = Net().init(jax.random.key(0), X)["params"]

    def loss(net):
        return jax.jit(jax.value_and_grad(lambda p: (net.apply({"params": p}, X[:B]) ** 2).mean()))

    got, want = (loss(net)(params) for net in (jaxpar.DataParallel(Net(), IDS), Net()))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), got, want)


@pytest.mark.full
def test_a_mesh_that_has_the_axis_gets_the_constraint():
    mesh = jax.make_mesh(
        (2,), ("model",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2]
    )
    boxes = {
        "kept": nn.Partitioned(jnp.ones(2), ("model",)),
        "opened": nn.Partitioned(jnp.ones(2), ("data",)),
        "kept by a rule": nn.LogicallyPartitioned(jnp.ones(2), ("embed",), rules=RULES),
        "opened by a rule": nn.LogicallyPartitioned(jnp.ones(2), ("embed",), rules=(("embed", "data"),)),
    }
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        params = without_absent_axes({"params": boxes})["params"]
    assert {name: isinstance(x, nn.Partitioned) for name, x in params.items()} == {
        name: name.startswith("kept") for name in boxes
    }
    assert without_absent_axes({"params": boxes}) == {"params": boxes}
