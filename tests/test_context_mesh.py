"""Any mesh in context: under `jax.set_mesh` everything gives the numbers that it gives without one.

The law: a case's results under every mesh of the table, with a batch from the host and with one that lies on
the mesh, equal those without a mesh, and can be used together with the batch.
"""

from __future__ import annotations

import functools
import itertools

import equinox as eqx
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
from jaxpar._tree import is_key
from jaxpar.distributed.check_replicas import check_replicas

N = 4
X, Y = np.random.RandomState(0).randn(8, 3), np.random.RandomState(1).randn(8, 2)
MESHES = {
    f"{kind.name}-{'x'.join(map(str, shape))}": (kind, shape)
    for kind in (AxisType.Auto, AxisType.Explicit)
    for shape in ((4,), (2, 2))
}


def mesh_of(name):
    kind, shape = MESHES[name]
    devices = np.array(jaxpar.devices()[:N]).reshape(shape)
    return Mesh(devices, ("data", "model")[: len(shape)], axis_types=(kind,) * len(shape))


class Net(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        # Before a normalisation the gradient of a bias is rounding noise, which has no digits to compare.
        self.first = nnx.Linear(3, 5, use_bias=False, rngs=rngs, param_dtype=float)
        self.norm = jaxpar.nn.SyncBatchNorm(5, param_dtype=float)
        self.last = nnx.Linear(5, 2, rngs=rngs, param_dtype=float)

    def __call__(self, x):
        return self.last(jnp.tanh(self.norm(self.first(x))))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(2, param_dtype=float)(jnp.tanh(linen.Dense(5, param_dtype=float)(x)))


def mse(net, x, y):
    return ((net(x) - y) ** 2).mean()


def optimizer_of(net):
    return nnx.Optimizer(net, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)


def parallel(module):
    return jaxpar.DataParallel(module, range(N))


def distributed(module):
    return jaxpar.DistributedDataParallel(module, range(N))


def outputs(x, y):
    net = parallel(Net())
    gradients = nnx.grad(mse)(net, x, y)
    optimizer_of(net).update(net, gradients)
    return net(x) - y, gradients, nnx.state(net)


def in_jit(wrap, x, y):
    net = wrap(Net())
    optimizer = optimizer_of(net)

    @nnx.jit
    def step(net, optimizer, x, y):
        if wrap is distributed:
            loss, gradients = net.value_and_grad(mse)(x, y)
        else:
            loss, gradients = nnx.value_and_grad(mse)(net, x, y)
        optimizer.update(net, gradients)
        return loss, net(x) - y

    return [step(net, optimizer, x, y) for _ in range(2)], nnx.state(net)


def five_steps(wrap, x, y, **options):
    net = wrap(Net())
    optimizer = optimizer_of(net)
    step = jaxpar.train_step(net, optimizer, mse_and_outputs, has_aux=True, **options)
    results = [step(x, y) for _ in range(5)]
    check_replicas(net)
    used = sum(loss for loss, _ in results), results[-1][1] - y
    return used, jaxpar.eval_step(net)(x) - y, nnx.state(net), nnx.state(optimizer), step.state_dict()["step"]


def mse_and_outputs(net, x, y):
    y_of_x = net(x)
    return ((y_of_x - y) ** 2).mean(), y_of_x


def value_and_grad(x, y):
    net = distributed(Net())
    optimizer = optimizer_of(net)
    value_and_grad = net.value_and_grad(mse)
    with net.join():
        for _ in range(2):
            loss, gradients = value_and_grad(x, y)
            optimizer.update(net, gradients)
    with net.no_sync():
        local, _ = value_and_grad(x, y)
    return loss + local, value_and_grad(x, y), net(x) - y, nnx.state(net)


def linen_steps(wrap, x, y):
    net = wrap(LinenNet())
    params = net.init(jax.random.key(0), np.zeros((1, 3)))["params"]
    state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.adam(0.1))
    step = jaxpar.train_step(net, state, mse)
    return [step(x, y) for _ in range(2)], step.state.params, jaxpar.eval_step(net)(step.state, x) - y


def function(x, y):
    return jaxpar.data_parallel(lambda x, y: (jnp.sin(x).sum(1), y - y.mean(0)), (x, y), range(N))


def derivative(x, y):
    def loss(x):
        one, two = function(x, y)
        return (one**3).sum() + (two**2).sum()

    return jax.grad(loss)(x) + x, jax.jit(jax.grad(loss))(x) + x


def verbs(x, y):
    shards = jaxpar.scatter((x, y), range(N))
    replicas = jaxpar.replicate(nnx.Linear(3, 2, rngs=nnx.Rngs(0), param_dtype=float), range(N))
    results = jaxpar.parallel_apply(replicas[: len(shards)], jaxpar.scatter(x, range(N)))
    return jaxpar.gather(results) - y, [np.asarray(piece) for piece, _ in shards]


CASES = {
    "outputs": outputs,
    "in jit": functools.partial(in_jit, parallel),
    "in jit, distributed": functools.partial(in_jit, distributed),
    "five steps": functools.partial(five_steps, parallel),
    "five steps, distributed": functools.partial(five_steps, distributed),
    "five steps, alone": functools.partial(five_steps, lambda net: net),
    "accumulate": functools.partial(five_steps, distributed, accumulate=2),
    "value_and_grad": value_and_grad,
    "linen": functools.partial(linen_steps, parallel),
    "linen, distributed": functools.partial(linen_steps, distributed),
    "function": function,
    "function in jit": jax.jit(function),
    "derivative": derivative,
    "verbs": verbs,
}


def numbers(tree):
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in jax.tree.leaves(tree)]


@functools.cache
def without_mesh(case, B):
    return numbers(CASES[case](X[:B], Y[:B]))


def on_mesh(mesh, x):
    split = "data" if x.shape[0] % mesh.shape["data"] == 0 else None
    return jax.device_put(x, NamedSharding(mesh, P(split)))


def results(case, B, mesh, placed):
    x, y = X[:B], Y[:B]
    if placed:
        x, y = on_mesh(mesh, x), on_mesh(mesh, y)
    with jax.set_mesh(mesh):
        return numbers(CASES[case](x, y))


TABLE = [
    (case, mesh, placed, B)
    for case, mesh, placed, B in itertools.product(CASES, MESHES, ("host", "placed"), (8, 6))
    # Nothing of jaxpar is between JAX and such a module, and JAX asks for an `out_sharding` in its backward.
    if (case, mesh[:8], placed) != ("five steps, alone", "Explicit", "placed")
]


@pytest.mark.full
@pytest.mark.sampled(15)
@pytest.mark.parametrize(("case", "mesh", "placed", "B"), TABLE)
def test_a_mesh_in_context_changes_no_number(case, mesh, placed, B):
    pairs = zip(results(case, B, mesh_of(mesh), placed == "placed"), without_mesh(case, B), strict=True)
    for i, (got, want) in enumerate(pairs):
        assert_equal_numbers(f"{case}[{i}]", got, want)


@pytest.mark.parametrize("replicated", [False, True], ids=["module", "function"])
@pytest.mark.parametrize("mesh", MESHES)
def test_the_mesh_of_placed_arrays_is_enough_under_jit(mesh, replicated):
    mesh = mesh_of(mesh)

    def gradients(weights, x, y):
        if replicated:
            net = parallel(lambda w, x: x @ w)
            return jax.value_and_grad(lambda w: mse(functools.partial(net, jaxpar.replicated(w)), x, y))(
                weights
            )
        net = nnx.merge(form, weights)
        return nnx.value_and_grad(mse)(net, x, y)

    module = nnx.Linear(3, 2, rngs=nnx.Rngs(0), param_dtype=float)
    form, weights = nnx.split(parallel(module))
    weights = jax.device_put(np.ones((3, 2)), NamedSharding(mesh, P())) if replicated else weights
    got = jax.jit(gradients)(weights, on_mesh(mesh, X), on_mesh(mesh, Y))
    want = gradients(jax.device_put(jax.tree.map(np.asarray, weights)), X, Y)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_equal_numbers("jit", np.asarray(a), np.asarray(b))


def test_a_planted_fault_is_seen():
    x, y = X.copy(), Y
    x[0, 0] += 1e-6
    with jax.set_mesh(mesh_of("Auto-4")):
        got = numbers(function(x, y))
    with pytest.raises(AssertionError, match="relative difference"):
        assert_equal_numbers("planted", got[0], without_mesh("function", 8)[0])


@pytest.mark.parametrize("mesh", MESHES)
def test_no_program_is_compiled_again_for_another_context(mesh):
    traced = []

    def double(x):
        traced.append(None)
        return 2 * x

    net = parallel(double)
    net(X)
    n = len(traced)
    with jax.set_mesh(mesh_of(mesh)):
        net(X)
    assert len(traced) == n


@pytest.mark.parametrize("mesh", MESHES)
def test_what_comes_back_lies_on_the_mesh(mesh):
    mesh = mesh_of(mesh)
    net = distributed(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    optimizer = optimizer_of(net)
    step = jaxpar.train_step(net, optimizer, mse)
    with jax.set_mesh(mesh):
        loss = step(X, Y)
        y = net(on_mesh(mesh, X))
    leaves = [loss, *jax.tree.leaves((nnx.state(net), nnx.state(optimizer)))]
    assert all(x.sharding == NamedSharding(mesh, P()) for x in leaves)
    assert y.sharding == NamedSharding(mesh, P("data"))
    assert step(X, Y).sharding.mesh.axis_names != mesh.axis_names  # the context is left again


def wrapped_outside(wrap, kind, in_jit):
    net = wrap(nnx.Linear(3, 2, rngs=nnx.Rngs(0), param_dtype=float))
    optimizer = optimizer_of(net)

    def step(net, optimizer, x, y):
        loss, gradients = (
            net.value_and_grad(mse)(x, y) if wrap is distributed else nnx.value_and_grad(mse)(net, x, y)
        )
        optimizer.update(net, gradients)
        return loss

    with jax.set_mesh(mesh_of(f"{kind}-4")):
        net(X)  # a forward works
        return [float((nnx.jit(step) if in_jit else step)(net, optimizer, X, Y)) for _ in range(2)]


@pytest.mark.parametrize("in_jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("wrap", [parallel, distributed])
def test_a_module_wrapped_outside_trains_under_auto_axes_and_says_where_to_wrap_under_explicit(wrap, in_jit):
    losses = wrapped_outside(wrap, "Auto", in_jit)
    assert losses[1] < losses[0]
    with pytest.raises(jaxpar.errors.MisplacedError, match=r"'data': 4}, are Explicit.* Wrap the module"):
        wrapped_outside(wrap, "Explicit", in_jit)


def test_an_equinox_module_wrapped_outside_says_where_to_wrap_under_explicit_axes():
    net = parallel(eqx.nn.Linear(3, 2, key=jax.random.key(0)))
    with (
        jax.set_mesh(mesh_of("Explicit-4")),
        pytest.raises(jaxpar.errors.MisplacedError, match=r"DataParallel: .*wrapped outside"),
    ):
        jax.vmap(net)(X)


def test_a_bare_spec_in_a_loss_says_where_its_axes_are():
    def loss(net, x, y):
        return mse(net, jax.lax.with_sharding_constraint(x, P("data")), y)

    net = parallel(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    step = jaxpar.train_step(net, optimizer_of(net), loss)
    with (
        jax.set_mesh(mesh_of("Auto-4")),
        pytest.raises((ValueError, RuntimeError), match="PartitionSpec") as raised,
    ):
        step(X, Y)
    assert "programs run outside of the context mesh, {'data': 4}" in raised.value.__notes__[-1]


def test_a_batch_in_its_place_is_not_sent_again():
    placement = jaxpar.Placement(tuple(jaxpar.devices()[:N]))
    for split in (
        jax.device_put(X, NamedSharding(placement.mesh, P("replica"))),
        on_mesh(mesh_of("Explicit-4"), X),
    ):
        jaxpar.scatter(split, placement)  # compiles, which sends constants
        with jax.transfer_guard("disallow_explicit"):
            shards = jaxpar.scatter(split, placement)
        np.testing.assert_array_equal(shards[1], X[2:4])


def raises_its_own(gradients, state, parameters=None):
    raise KeyError("a bug of the user's optimizer")


def test_an_optimizers_own_error_comes_through():
    net = parallel(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    tx = optax.GradientTransformation(lambda parameters: optax.EmptyState(), raises_its_own)
    with pytest.raises(KeyError, match="a bug of the user's optimizer"):
        jaxpar.train_step(net, nnx.Optimizer(net, tx, wrt=nnx.Param), mse)
