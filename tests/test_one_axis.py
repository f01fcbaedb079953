"""DataParallel over one axis of a user's mesh: a model axis beside it changes no number."""

from __future__ import annotations

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_numbers
from flax import linen, nnx
from flax.training.train_state import TrainState
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxpar
from jaxpar import errors

X, Y = np.random.RandomState(0).randn(16, 3), np.random.RandomState(1).randn(16, 4)
WRAPPERS = {"DataParallel": jaxpar.DataParallel, "DistributedDataParallel": jaxpar.DistributedDataParallel}


class Net(nnx.Module):
    def __init__(self, constrained=False):
        rngs = nnx.Rngs(0)
        self.constrained = constrained
        self.first = nnx.Linear(3, 8, use_bias=False, rngs=rngs, param_dtype=float)
        self.norm = jaxpar.nn.SyncBatchNorm(8, param_dtype=float)
        self.last = nnx.Linear(8, 4, rngs=rngs, param_dtype=float)

    def __call__(self, x):
        hidden = jnp.tanh(self.norm(self.first(x)))
        if self.constrained:
            hidden = jax.lax.with_sharding_constraint(hidden, P(None, "model"))
        return self.last(hidden)


def mesh_of(shape, kind=AxisType.Auto):
    devices = np.array(jaxpar.devices()[: shape[0] * shape[1]]).reshape(shape)
    return Mesh(devices, ("data", "model"), axis_types=(kind, kind))


def split(net, mesh):
    for layer, spec in ((net.first, P(None, "model")), (net.last, P("model", None))):
        layer.kernel.set_value(jax.device_put(layer.kernel[...], NamedSharding(mesh, spec)))
    return net


def mse(net, x, y):
    return ((net(x) - y) ** 2).mean()


def trained(net, B, around_gradients=contextlib.nullcontext):
    x, y = X[:B], Y[:B]
    optimizer = nnx.Optimizer(net, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    step = jaxpar.train_step(net, optimizer, mse)
    losses = [step(x, y) for _ in range(5)]
    if isinstance(net, jaxpar.DistributedDataParallel):
        gradients = net.value_and_grad(mse)(x, y)
    else:
        with around_gradients():
            gradients = nnx.value_and_grad(mse)(net, x, y)
    results = losses, jaxpar.eval_step(net)(x), net(x), gradients, nnx.state(net), nnx.state(optimizer)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(results)]


@pytest.mark.full
@pytest.mark.sampled(11)
@pytest.mark.parametrize("B", [16, 13])
@pytest.mark.parametrize("shape", [(1, 2), (2, 2), (4, 2)], ids=str)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("in_context", [False, True])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_model_axis_changes_no_number(wrapper, in_context, kind, shape, B):
    wrap, mesh = WRAPPERS[wrapper], mesh_of(shape, kind)
    # One device for DataParallel; for DistributedDataParallel, which takes means over replicas, as many.
    want = trained(Net() if wrapper == "DataParallel" else wrap(Net(), range(shape[0])), B)
    # JAX itself differentiates arrays on a mesh with Explicit axes in that mesh's context only.
    around = functools.partial(jax.set_mesh, mesh) if kind is AxisType.Explicit else contextlib.nullcontext
    with jax.set_mesh(mesh) if in_context else contextlib.nullcontext():
        net = wrap(split(Net(constrained=True), mesh), mesh=mesh, axis="data")
        got = trained(net, B, around)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert_equal_numbers(f"{wrapper}[{i}]", a, b)
    assert net.module.first.kernel[...].sharding == NamedSharding(mesh, P(None, "model"))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        init = linen.initializers.lecun_normal()
        columns, rows = (linen.with_partitioning(init, spec) for spec in ((None, "model"), ("model", None)))
        hidden = jnp.tanh(linen.Dense(8, use_bias=False, param_dtype=float, kernel_init=columns)(x))
        return linen.Dense(4, param_dtype=float, kernel_init=rows)(hidden)


def linen_results(net, variables, B):
    x, y = X[:B], Y[:B]
    params = jax.tree.map(jnp.copy, variables["params"])  # the step takes its arrays over
    gradients = jax.grad(lambda params: mse(lambda x: net.apply({"params": params}, x), x, y))(params)
    outputs = net.apply({"params": params}, x)
    state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.sgd(0.1, momentum=0.9))
    step = jaxpar.train_step(net, state, mse)
    losses = [step(x, y) for _ in range(5)]
    return step.state.params, jax.tree.map(np.asarray, (outputs, gradients, losses, step.state.params))


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("B", [16, 13])
@pytest.mark.parametrize("boxed", [True, False])
def test_linens_partitioning_metadata(boxed, B):
    mesh, net = mesh_of((4, 2)), LinenNet()
    variables = net.init(jax.random.key(0), X)
    specs, values = linen.get_partition_spec(variables), linen.unbox(variables)
    split = jax.tree.map(lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)), values, specs)
    if boxed:
        split = jax.tree.map(
            lambda box, x: box.replace_boxed(x) if is_box(box) else x, variables, split, is_leaf=is_box
        )
    _, want = linen_results(net, variables, B)
    params, got = linen_results(jaxpar.DataParallel(net, mesh=mesh, axis="data"), split, B)
    for i, (a, b) in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)):
        assert_equal_numbers(f"Linen[{i}]", a, b)
    first, _, last = (x.sharding.spec for x in jax.tree.leaves(params))
    assert (tuple(first), tuple(last)[:1]) == ((None, "model"), ("model",))


def is_box(node):
    return isinstance(node, linen.Partitioned)


def test_a_checkpoint_is_restored_as_it_is_split(tmp_path):
    mesh = mesh_of((2, 2))
    net, other = (jaxpar.DataParallel(split(Net(), mesh), mesh=mesh, axis="data") for _ in range(2))
    optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
    jaxpar.train_step(net, optimizer, mse)(X, Y)
    with jaxpar.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, net=net)
    with jaxpar.Checkpointer(tmp_path) as checkpointer:
        checkpointer.restore(net=other)
    kernel = other.module.first.kernel[...]
    np.testing.assert_array_equal(kernel, net.module.first.kernel[...])
    assert kernel.sharding.spec == P(None, "model")


WRONG = {
    "axis": ({"axis": "rows"}, ValueError, "no axis of the mesh"),
    "no axis": ({}, ValueError, "name one of"),
    "pmap": ({"axis": "data", "backend": "pmap"}, ValueError, "pmap"),
    "devices": ({"axis": "data", "device_ids": [0]}, TypeError, "leave device_ids"),
    "mesh": ({"mesh": 3, "axis": "data"}, TypeError, "must be a jax.sharding.Mesh"),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case, wrapper):
    options, error, text = WRONG[case]
    with pytest.raises(error, match=text):
        WRAPPERS[wrapper](Net(), **({"mesh": mesh_of((2, 2))} | options))


def test_a_parameter_split_over_the_data_axis_is_whole_there():
    mesh = mesh_of((2, 2))
    layer = nnx.Linear(4, 4, rngs=nnx.Rngs(0), param_dtype=float)
    layer.kernel[...] = jax.device_put(layer.kernel[...], NamedSharding(mesh, P("data", "model")))
    net = jaxpar.DataParallel(layer, mesh=mesh, axis="data")
    np.testing.assert_allclose(net(Y), Y @ np.asarray(layer.kernel[...]), rtol=1e-12)
    assert layer.kernel[...].sharding == NamedSharding(mesh, P(None, "model"))


def doubled(x, **options):
    spec = P(None, "model")
    return jax.shard_map(lambda x: 2 * x, in_specs=spec, out_specs=spec, axis_names={"model"}, **options)(x)


def refusing(x):
    raise ValueError("mine")


def test_a_shard_map_over_another_axis_inside_a_replica():
    mesh = mesh_of((4, 2))
    outputs = jaxpar.DataParallel(doubled, mesh=mesh, axis="data")(Y)
    np.testing.assert_array_equal(outputs, 2 * Y)
    with pytest.raises(ValueError, match="should match the mesh") as caught:
        jaxpar.DataParallel(functools.partial(doubled, mesh=mesh), mesh=mesh, axis="data")(Y)
    assert any("leave mesh= out" in note for note in caught.value.__notes__)
    with pytest.raises(ValueError, match="mine") as caught:
        jaxpar.DataParallel(refusing, mesh=mesh, axis="data")(Y)
    assert not any("leave mesh= out" in note for note in getattr(caught.value, "__notes__", []))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_replicas_draw_the_same_in_a_users_jit_under_his_mesh(kind):
    """Which replica it is was looked up in the mesh in context, which has no such axis."""
    mesh = mesh_of((2, 2), kind)
    dropout = jaxpar.DataParallel(nnx.Dropout(0.5), mesh=mesh, axis="data")

    def dropped(x):
        return dropout(x, rngs=nnx.Rngs(0))

    outside = dropped(X)
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(jax.jit(dropped)(X), outside)


@pytest.mark.parametrize("over", ["data", "model"])
@pytest.mark.parametrize("jit", [jax.jit, lambda f: f])
def test_a_wrapper_inside_of_shard_map_is_refused(jit, over):
    mesh = mesh_of((4, 2))
    for net in (jaxpar.DataParallel(jnp.tanh), jaxpar.DataParallel(jnp.tanh, mesh=mesh, axis="data")):
        options = {"in_specs": P(over), "out_specs": P(over), "axis_names": {over}}
        with pytest.raises(
            errors.NestedError, match=f"inside of jax.shard_map over '{over}', which has shared"
        ):
            jit(jax.shard_map(net, mesh=mesh, **options))(X)
