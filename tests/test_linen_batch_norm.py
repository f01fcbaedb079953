"""Linen's BatchNorm over all rows of all replicas: by the user's axis_name, or by convert_sync_batchnorm."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_trees
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec as P

import jaxpar
from jaxpar import errors

IDS, C = [0, 1, 2, 3], 6
X = 3 + 2 * np.random.RandomState(0).randn(10, 4, C)
KEY = jax.random.key(0)


class Norm(nn.Module):
    """A layer with `options`, after one that has parameters and before another."""

    options: Any = ()
    axis_name: str | None = None
    how: str = "compact"

    def setup(self):
        self.first = nn.Dense(C, use_bias=False, param_dtype=jnp.float64)
        self.last = nn.Dense(2, param_dtype=jnp.float64)
        layer = nn.remat(nn.BatchNorm, static_argnums=2) if self.how == "remat" else nn.BatchNorm
        options = {"param_dtype": jnp.float64, "momentum": 0.8, "axis_name": self.axis_name}
        options |= dict(self.options)
        self.norm = Inner(tuple(options.items())) if self.how == "compact" else layer(**options)

    def __call__(self, x, train=True):
        return self.last(jnp.tanh(self.norm(self.first(x), not train)))


class Inner(nn.Module):
    options: Any

    @nn.compact
    def __call__(self, x, use_running_average):
        return nn.BatchNorm(**dict(self.options))(x, use_running_average)


class Scanned(nn.Module):
    """Blocks that nn.scan runs one after the other, with parameters and statistics of their own."""

    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, train=True):
        def body(block, x, _):
            return jnp.tanh(block(x, not train)), None

        options = {"param_dtype": jnp.float64, "axis_name": self.axis_name}
        scan = nn.scan(
            body, variable_axes={"params": 0, "batch_stats": 0}, split_rngs={"params": True}, length=3
        )
        return scan(Inner(tuple(options.items())), x, None)[0]


def plain(module):
    return module


def float64(variables):
    return jax.tree.map(lambda x: x.astype(jnp.float64), variables)


def equal(name, got, want):
    assert_equal_trees(name, *(dict(named_leaves(tree)) for tree in (got, want)), tolerance=1e-10)


def named_leaves(tree):
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(tree)]


def target(y):
    return (y - 0.3) ** 2


def by_chunks(y, B):
    """DistributedDataParallel's loss: the mean of the replicas' means."""
    sizes = -(-B // len(IDS))
    pieces = [target(y)[i : i + sizes].mean() for i in range(0, B, sizes)]
    return sum(pieces) / len(IDS)


def one_step(net, variables, x, loss=lambda y, B: target(y).mean()):
    """Loss, outputs, new statistics and gradients."""

    def objective(params):
        y, updates = net.apply({**variables, "params": params}, x, mutable=["batch_stats"])
        return loss(y, len(x)), (y, updates["batch_stats"])

    (value, (y, statistics)), gradients = jax.value_and_grad(objective, has_aux=True)(variables["params"])
    return {"loss": value, "y": y, "statistics": statistics, "gradients": gradients}


def of_train_step(wrapped, variables, x):
    """Two steps of SGD."""
    variables = jax.tree.map(jnp.copy, variables)  # the step takes them over

    class State(TrainState):
        batch_stats: Any

    if isinstance(wrapped, jaxpar.DataParallel):
        variables = {name: {"module": tree} for name, tree in variables.items()}
    state = State.create(apply_fn=None, tx=optax.sgd(0.1), **variables)
    step = jaxpar.train_step(wrapped, state, lambda net, x: target(net(x)).mean())
    losses = [step(x), step(x)]
    state = step.state
    parts = {"params": state.params, "batch_stats": state.batch_stats}
    if isinstance(wrapped, jaxpar.DataParallel):
        parts = {name: tree["module"] for name, tree in parts.items()}
    return {"losses": jnp.stack(losses), **parts}


def by_hand(net, variables, x, loss=lambda y, B: target(y).mean()):
    losses = []
    for _ in range(2):
        done = one_step(net, variables, x, loss)
        losses.append(done["loss"])
        params = jax.tree.map(lambda p, g: p - 0.1 * g, variables["params"], done["gradients"])
        variables = {"params": params, "batch_stats": done["statistics"]}
    return {"losses": jnp.stack(losses), **variables}


def named(axis_name, **fields):
    return Norm(axis_name=axis_name, **fields)


def converted(axis_name, **fields):
    return jaxpar.convert_sync_batchnorm(Norm(**fields), axis_name=axis_name or "replica")


LAYERS = {
    "compact": {},
    "setup": {"how": "setup"},
    "remat": {"how": "remat"},
    "two-pass": {"options": (("use_fast_variance", False),)},
    "without parameters": {"options": (("use_scale", False), ("use_bias", False))},
    "another axis": {"options": (("axis", 1),)},
    "two axes": {"options": (("axis", (1, -1)),)},
    "param dtype": {"options": (("force_float32_reductions", False),)},
}


@pytest.mark.full
@pytest.mark.sampled(7)
@pytest.mark.parametrize("B", [8, 10, 3])
@pytest.mark.parametrize("layer", LAYERS)
def test_data_parallel_equals_one_device(layer, B):
    fields, x = LAYERS[layer], X[:B]
    variables = float64(Norm(**fields).init(KEY, x))
    want = one_step(Norm(**fields), variables, x)
    ways = [named("batch", **fields), named("replica", **fields), converted(None, **fields)]
    for module in ways if B == 10 else ways[:1]:
        net = jaxpar.DataParallel(module, IDS)
        equal(repr(module), jax.jit(lambda v, net=net: one_step(net, v, x))(variables), want)
    if B == 10 and layer == "compact":
        equal("eager", one_step(net, variables, x), want)
        alone = one_step(jaxpar.DataParallel(Norm(**fields), IDS), variables, x)
        assert np.abs(alone["y"] - want["y"]).max() > 1e-2  # without a name every replica has its own


@pytest.mark.sampled(4)
@pytest.mark.full
@pytest.mark.parametrize("B", [8, 10])
@pytest.mark.parametrize("wrap", [plain, jaxpar.DataParallel, jaxpar.DistributedDataParallel])
@pytest.mark.parametrize("make", [named, converted])
def test_train_step_equals_one_device(make, wrap, B):
    x, replicated = X[:B], wrap is jaxpar.DistributedDataParallel
    variables = float64(Norm().init(KEY, x))
    net = wrap(make("batch")) if wrap is plain else wrap(make("batch" if make is named else None), IDS)
    got = of_train_step(net, variables, x)
    want = by_hand(Norm(), variables, x, by_chunks if replicated else lambda y, B: target(y).mean())
    equal("two steps", got, want)


@pytest.mark.full
@pytest.mark.parametrize("B", [8, 10])
def test_value_and_grad_equals_one_device(B):
    x, net = X[:B], jaxpar.DistributedDataParallel(named("batch"), IDS)
    variables = float64(Norm().init(KEY, x))
    (loss, updates), gradients = net.value_and_grad(
        lambda net, x: target(net(x)).mean(), mutable=["batch_stats"]
    )(variables, x)
    want = one_step(Norm(), variables, x, by_chunks)
    got = {"loss": loss, "statistics": updates["batch_stats"], "gradients": gradients}
    equal("step", got, {name: want[name] for name in got})
    outputs, _ = net.apply(variables, x, mutable=["batch_stats"])
    np.testing.assert_allclose(outputs, want["y"], rtol=1e-10)


@pytest.mark.full
@pytest.mark.parametrize("ids", [[0], []])
def test_one_device_is_one_replica(ids, monkeypatch):
    if not ids:
        monkeypatch.setattr("jaxpar._devices.devices.devices", lambda: jax.devices()[:1])
    net = jaxpar.DataParallel(named("batch"), ids or None)
    variables = float64(Norm().init(KEY, X))
    equal("step", one_step(net, variables, X), one_step(Norm(), variables, X))


def test_evaluation_takes_the_running_statistics():
    variables = float64(Norm().init(KEY, X))
    variables["batch_stats"] = jax.tree.map(lambda x: x + 0.5, variables["batch_stats"])
    want = Norm().apply(variables, X, train=False)
    for module in (named("batch"), converted(None)):
        net = jaxpar.DataParallel(module, IDS)
        np.testing.assert_allclose(net.apply(variables, X, train=False), want, rtol=1e-12)
        evaluate = jaxpar.eval_step(net, lambda net, x: net(x, train=False))
        nested = {name: {"module": tree} for name, tree in variables.items()}
        np.testing.assert_allclose(evaluate(nested, X), want, rtol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("make", [lambda: Scanned("batch"), lambda: jaxpar.convert_sync_batchnorm(Scanned())])
def test_layers_in_a_loop(make):
    variables = float64(Scanned().init(KEY, X[:8]))
    net = jaxpar.DataParallel(make(), IDS)
    equal("step", one_step(net, variables, X[:8]), one_step(Scanned(), variables, X[:8]))
    with pytest.raises(errors.CollectiveError, match=r"psum in scan\).*Make B a multiple"):
        one_step(net, variables, X)


@pytest.mark.full
@pytest.mark.parametrize("B", [10, 2])
def test_filling_reaches_no_statistics_in_a_loop(B):
    """Without a name each replica takes those of its own rows, also where nn.scan runs the layers."""
    variables = float64(Scanned().init(KEY, X[:8]))
    b = -(-B // 3)
    pieces = [Scanned().apply(variables, x, mutable=["batch_stats"]) for x in np.split(X[:B], range(b, B, b))]
    net = jaxpar.DataParallel(Scanned(), IDS[:3])
    outputs, updates = net.apply(variables, X[:B], mutable=["batch_stats"])
    np.testing.assert_allclose(outputs, np.concatenate([y for y, _ in pieces]), rtol=1e-10)
    equal("statistics", updates, pieces[0][1])


@pytest.mark.full
@pytest.mark.parametrize("B", [8, 10])
def test_a_mask(B):
    """Rows that do not count, one by one or feature by feature."""

    class Masked(nn.Module):
        axis_name: str | None = None

        @nn.compact
        def __call__(self, x, mask):
            options = {"param_dtype": jnp.float64, "axis_name": self.axis_name}
            return nn.BatchNorm(use_running_average=False, **options)(x, mask=mask)

    x, random = X[:B, 0], np.random.RandomState(1)
    for mask in (random.rand(B, 1) > 0.4, random.rand(B, C) > 0.4):
        variables = float64(Masked().init(KEY, x, mask))

        def run(module, variables=variables, mask=mask):
            return module.apply(variables, x, mask, mutable=["batch_stats"])

        got = run(jaxpar.DataParallel(Masked("batch"), IDS))
        equal("masked", got, run(Masked()))


@pytest.mark.full
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_types_are_flaxs(dtype):
    x = jnp.asarray(X[:, 0], dtype)
    fields = {"use_running_average": False, "param_dtype": jnp.float32}
    with jax.enable_x64(False):
        variables = nn.BatchNorm(**fields).init(KEY, x)
        want = nn.BatchNorm(**fields).apply(variables, x, mutable=["batch_stats"])
        net = jaxpar.DataParallel(nn.BatchNorm(axis_name="batch", **fields), IDS)
        got = net.apply(variables, x, mutable=["batch_stats"])
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(
            np.float32(a), np.float32(b), rtol=1e-5, atol=1e-6 if b.dtype == dtype else 0
        )


@pytest.mark.full
def test_a_name_that_a_vmap_binds_stays_the_vmaps():
    """Each replica's rows in pairs, normalised by a vmap of the user's own."""
    x, pairs = X[:8, 0], lambda x: x.reshape(-1, 2, C)
    variables = float64(nn.BatchNorm(use_running_average=False).init(KEY, x))

    class Pairs(nn.Module):
        @nn.compact
        def __call__(self, x):
            norm = nn.vmap(
                nn.BatchNorm,
                in_axes=1,
                out_axes=1,
                axis_name="pair",
                variable_axes={"params": None, "batch_stats": None},
                split_rngs={"params": False},
            )
            return norm(use_running_average=False, axis_name="pair", param_dtype=jnp.float64)(pairs(x))

    inner = {name: {"VmapBatchNorm_0": tree} for name, tree in variables.items()}
    want = jnp.concatenate(
        [Pairs().apply(inner, piece, mutable=["batch_stats"])[0] for piece in np.split(x, 4)]
    )
    got, _ = jaxpar.DataParallel(Pairs(), IDS).apply(inner, x, mutable=["batch_stats"])
    np.testing.assert_allclose(got, want, rtol=1e-10)


# --------------------------------------------------------------------------- convert_sync_batchnorm


class TwoMethods(nn.Module):
    width: int = C

    def setup(self):
        self.norm = nn.BatchNorm(use_running_average=False, param_dtype=jnp.float64)

    def __call__(self, x):
        return self.encode(x)

    def encode(self, x):
        return self.norm(x)

    @staticmethod
    def size():
        return 1

    @property
    def doubled(self):
        return 2 * self.width

    @nn.nowrap
    def label(self):
        return f"width {self.width}"


def test_the_converted_module_is_one_of_its_class():
    module = TwoMethods(5, name="both")
    net = jaxpar.convert_sync_batchnorm(module)
    assert isinstance(net, TwoMethods)
    assert (type(net).__name__, net.name, net.width, net.doubled) == ("TwoMethods", "both", 5, 10)
    assert (net.size(), net.label()) == (1, "width 5")
    assert net == jaxpar.convert_sync_batchnorm(module) == jaxpar.convert_sync_batchnorm(net)
    assert net != module != jaxpar.convert_sync_batchnorm(module, axis_name="data")
    assert jax.tree.structure(net.init(KEY, X)) == jax.tree.structure(module.init(KEY, X))


def test_every_method_takes_all_rows():
    net = jaxpar.convert_sync_batchnorm(TwoMethods())
    variables = float64(net.init(KEY, X))
    want, updates = TwoMethods().apply(variables, X, mutable=["batch_stats"])
    mesh = jax.make_mesh(
        (2,), ("replica",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2]
    )

    @jax.jit
    def on_mesh(x):
        run = lambda x: net.apply(variables, x, mutable=["batch_stats"], method="encode")  # noqa: E731
        return jax.shard_map(
            run, mesh=mesh, in_specs=P("replica"), out_specs=(P("replica"), P()), check_vma=False
        )(x)

    got = on_mesh(X)
    equal("encode", got, (want, updates))


def test_intermediates_are_recorded_once():
    net = jaxpar.convert_sync_batchnorm(TwoMethods())
    variables = net.init(KEY, X)
    _, want = TwoMethods().apply(variables, X, mutable=["batch_stats"], capture_intermediates=True)
    _, got = net.apply(variables, X, mutable=["batch_stats"], capture_intermediates=True)
    assert jax.tree.structure(got["intermediates"]) == jax.tree.structure(want["intermediates"])


def test_a_layers_own_name_is_used_where_it_is_bound():
    net = jaxpar.convert_sync_batchnorm(Norm(axis_name="batch"))
    variables = float64(Norm().init(KEY, X))
    want = one_step(Norm(), variables, X)
    equal("one replica", one_step(net, variables, X), want)
    mesh = jax.make_mesh(
        (2,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2]
    )
    apply = lambda x: net.apply(variables, x, mutable=["batch_stats"])[0]  # noqa: E731
    run = jax.shard_map(apply, mesh=mesh, in_specs=P("batch"), out_specs=P("batch"), check_vma=False)
    np.testing.assert_allclose(jax.jit(run)(X), want["y"], rtol=1e-10)


def test_as_a_submodule_of_another_one():
    class Outer(nn.Module):
        block: nn.Module

        @nn.compact
        def __call__(self, x):
            return self.block(2 * x)

    variables = float64(Outer(TwoMethods()).init(KEY, X))
    want = Outer(TwoMethods()).apply(variables, X, mutable=["batch_stats"])
    net = jaxpar.DataParallel(Outer(jaxpar.convert_sync_batchnorm(TwoMethods())), IDS)
    equal("outer", net.apply(variables, X, mutable=["batch_stats"]), want)


class Own(nn.BatchNorm):
    """What a subclass adds stays."""

    def __call__(self, x, use_running_average=None, *, mask=None):
        return 2 * super().__call__(x, use_running_average, mask=mask)


def test_a_subclass_of_batch_norm():
    fields = {"use_running_average": False, "param_dtype": jnp.float64}
    variables = float64(Own(**fields).init(KEY, X))
    want = Own(**fields).apply(variables, X, mutable=["batch_stats"])
    for module in (Own(axis_name="batch", **fields), jaxpar.convert_sync_batchnorm(Own(**fields))):
        net = jaxpar.DataParallel(module, IDS)
        equal("own", net.apply(variables, X, mutable=["batch_stats"]), want)


def bound():
    return Norm().bind(Norm().init(KEY, X))


def inside():
    class Parent(nn.Module):
        @nn.compact
        def __call__(self, x):
            return jaxpar.convert_sync_batchnorm(Norm())(x)

    return Parent().init(KEY, X)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: jaxpar.convert_sync_batchnorm(bound()), TypeError, "is bound to its variables"),
        (lambda: jaxpar.convert_sync_batchnorm(jaxpar.DataParallel(Norm())), TypeError, "is a wrapper"),
        (inside, TypeError, "has a parent"),
        (
            lambda: jaxpar.convert_sync_batchnorm(Norm(), type("Group", (), {"ranks": [0]})()),
            ValueError,
            "process_group is for NNX modules",
        ),
    ],
)
def test_what_cannot_be_converted(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_mesh_without_the_axis():
    net = jaxpar.convert_sync_batchnorm(TwoMethods())
    variables = net.init(KEY, X)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    run = jax.shard_map(
        lambda x: net.apply(variables, x, mutable=["batch_stats"])[0], mesh=mesh, in_specs=P("data"),
        out_specs=P("data"),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"over the mesh axes \('data',\), and axis_name='replica' is none"):
        run(X)
