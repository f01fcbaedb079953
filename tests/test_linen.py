"""DataParallel around Linen modules: init, apply, collections, random streams, submodules."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxpar
from jaxpar import errors

pytestmark = pytest.mark.filterwarnings("ignore:DataParallel. BatchNorm")  # has tests of its own


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Dense(6, param_dtype=jnp.float64)(x)
        x = nn.BatchNorm(use_running_average=not train, param_dtype=jnp.float64, use_fast_variance=False)(x)
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(2, param_dtype=jnp.float64)(x)


X = np.random.RandomState(0).randn(11, 4)
RNGS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}


def variables_of(net):
    """All in float64: Linen makes float32 statistics, and XLA's float32 rsqrt differs between processors."""
    return jax.tree.map(lambda x: x.astype(jnp.float64), net.init(RNGS, X))


@pytest.fixture(params=["shard_map", "pmap"])
def net(request):
    return jaxpar.DataParallel(Net(), [0, 1, 2], backend=request.param)


@pytest.mark.full
def test_it_is_a_linen_module(net):
    assert isinstance(net, nn.Module)
    assert isinstance(net, jaxpar.DataParallel)
    assert net.device_ids == [0, 1, 2]
    assert isinstance(net.module, Net)
    variables = variables_of(net)
    assert set(variables) == {"params", "batch_stats"}
    assert list(variables["params"]) == ["module"]
    assert set(variables["params"]["module"]) == {"Dense_0", "BatchNorm_0", "Dense_1"}


@pytest.mark.parametrize("B", [11, 9, 2, 1])
def test_outputs_in_eval_mode(net, B):
    variables = variables_of(net)
    got = net.apply(variables, X[:B], train=False)
    want = Net().apply({c: v["module"] for c, v in variables.items()}, X[:B], train=False)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    np.testing.assert_allclose(
        jax.jit(lambda v, x: net.apply(v, x, train=False))(variables, X[:B]), want, rtol=1e-12
    )


# docs/semantics.md rows 39, 75
def test_statistics_come_back_from_replica_zero(net):
    variables = variables_of(net)
    _, updates = net.apply(variables, X, rngs={"dropout": jax.random.key(2)}, mutable=["batch_stats"])
    inner = {c: v["module"] for c, v in variables.items()}
    _, want = Net().apply(inner, X[:4], rngs={"dropout": jax.random.key(2)}, mutable=["batch_stats"])
    got = updates["batch_stats"]["module"]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), got, want["batch_stats"])


@pytest.mark.full
def test_gradients_equal_the_module(net):
    variables = variables_of(net)

    def loss(apply, params, stats):
        return (apply({"params": params, "batch_stats": stats}, X, train=False) ** 2).sum()

    got = jax.grad(lambda p: loss(net.apply, p, variables["batch_stats"]))(variables["params"])["module"]
    want = jax.grad(lambda p: loss(Net().apply, p, variables["batch_stats"]["module"]))(
        variables["params"]["module"]
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11), got, want)


@pytest.mark.full
def test_training(net):
    variables = variables_of(net)
    params, stats = variables["params"], variables["batch_stats"]
    tx = optax.sgd(0.1)
    opt = tx.init(params)

    @jax.jit
    def step(params, stats, opt, key, x):
        def loss(params):
            y, updates = net.apply(
                {"params": params, "batch_stats": stats}, x, rngs={"dropout": key}, mutable=["batch_stats"]
            )
            return (y**2).mean(), updates["batch_stats"]

        (value, stats_), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt_ = tx.update(gradients, opt)
        return optax.apply_updates(params, updates), stats_, opt_, value

    losses = []
    for i in range(10):
        params, stats, opt, value = step(params, stats, opt, jax.random.key(i), X)
        losses.append(float(value))
    assert losses[-1] < losses[0]


# docs/semantics.md row 57
@pytest.mark.full
def test_random_streams():
    net = jaxpar.DataParallel(nn.Dropout(0.5, deterministic=False), range(4))
    ones, key = np.ones((8, 1000)), jax.random.key(7)
    masks = np.asarray(net.apply({}, ones, rngs={"dropout": key})).reshape(4, 2, 1000)
    assert len({m.tobytes() for m in masks}) == 4
    # design 4: with one replica nothing is folded
    alone = jaxpar.DataParallel(nn.Dropout(0.5, deterministic=False), [0])
    one = [n.apply({}, ones[:1], rngs={"dropout": key}) for n in (net, alone)]
    np.testing.assert_array_equal(*one)


def test_two_calls_in_one_apply_draw_twice():
    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x):
            drop = jaxpar.DataParallel(nn.Dropout(0.5, deterministic=False), [0, 1])
            return drop(x), drop(x)

    one, two = Twice().apply({}, np.ones((2, 1000)), rngs={"dropout": jax.random.key(0)})
    assert (np.asarray(one) != np.asarray(two)).any()


def test_legacy_keys():
    net = jaxpar.DataParallel(nn.Dropout(0.5, deterministic=False), range(2))
    masks = np.asarray(net.apply({}, np.ones((2, 1000)), rngs={"dropout": jax.random.PRNGKey(7)}))
    assert (masks[0] != masks[1]).any()


# a block inside a larger model
@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("style", ["compact", "setup"])
@pytest.mark.parametrize("jit", [False, True])
def test_as_a_submodule(style, jit):
    class Compact(nn.Module):
        parallel: bool

        @nn.compact
        def __call__(self, x):
            x = nn.Dense(5, param_dtype=jnp.float64)(x)
            block = Net()
            x = jaxpar.DataParallel(block, [0, 1])(x) if self.parallel else block(x)
            return nn.Dense(1, param_dtype=jnp.float64)(x)

    class Setup(nn.Module):
        parallel: bool

        def setup(self):
            self.first = nn.Dense(5, param_dtype=jnp.float64)
            self.block2 = jaxpar.DataParallel(Net(), [0, 1]) if self.parallel else Net()
            self.last = nn.Dense(1, param_dtype=jnp.float64)

        def __call__(self, x):
            return self.last(self.block2(self.first(x)))

    model = (Compact if style == "compact" else Setup)(parallel=True)
    variables = variables_of(model)

    def apply(variables, x):
        return model.apply(variables, x, rngs={"dropout": jax.random.key(1)}, mutable=["batch_stats"])

    y, updates = (jax.jit(apply) if jit else apply)(variables, X)
    assert y.shape == (11, 1)
    (stats,) = jax.tree.leaves(
        updates["batch_stats"], is_leaf=lambda t: isinstance(t, dict) and "BatchNorm_0" in t
    )
    (before,) = jax.tree.leaves(
        variables["batch_stats"], is_leaf=lambda t: isinstance(t, dict) and "BatchNorm_0" in t
    )
    assert not np.allclose(stats["BatchNorm_0"]["mean"], before["BatchNorm_0"]["mean"])
    gradients = jax.grad(lambda p: (apply({**variables, "params": p}, X)[0] ** 2).sum())(variables["params"])
    assert all(np.abs(g).sum() > 0 for g in jax.tree.leaves(gradients) if g.ndim > 1)


def test_bound_modules_in_the_four_verbs():
    variables = variables_of(Net())
    bound = Net().bind(variables)
    replicas = jaxpar.replicate(bound, [0, 1])
    outputs = jaxpar.parallel_apply(replicas, jaxpar.scatter((X, False), [0, 1]))
    np.testing.assert_allclose(jaxpar.gather(outputs), bound(X, False), rtol=1e-12)
    np.testing.assert_allclose(jaxpar.data_parallel(bound, (X, False), [0, 1]), bound(X, False), rtol=1e-12)
    copy = replicas[1]
    assert copy.variables["params"]["Dense_0"]["kernel"].devices() == {jax.devices()[1]}


def test_the_bound_modules_statistics_are_updated():
    bound = Net().bind(variables_of(Net()), rngs={"dropout": jax.random.key(0)}, mutable=["batch_stats"])
    before = bound.variables["batch_stats"]["BatchNorm_0"]["mean"]
    jaxpar.data_parallel(bound, X, [0, 1])
    assert not np.allclose(bound.variables["batch_stats"]["BatchNorm_0"]["mean"], before)


def test_intermediates_are_gathered():
    class Sows(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.sow("intermediates", "rows", x.sum(1))
            return x

    net = jaxpar.DataParallel(Sows(), [0, 1, 2])
    _, state = net.apply({}, X, mutable=["intermediates"])
    np.testing.assert_allclose(state["intermediates"]["module"]["rows"][0], X.sum(1))


def test_one_device_and_none(monkeypatch):
    net = jaxpar.DataParallel(Net(), [5])
    variables = variables_of(net)
    want = Net().apply({c: v["module"] for c, v in variables.items()}, X, train=False)
    np.testing.assert_allclose(net.apply(variables, X, train=False), want, rtol=1e-12)
    monkeypatch.setattr("jaxpar._devices.devices.devices", lambda: jax.devices()[:1])
    net = jaxpar.DataParallel(Net())
    assert net.device_ids == []
    np.testing.assert_allclose(net.apply(variables, X, train=False), want, rtol=1e-12)


# ------------------------------------------------------------------------------------------ bad input


def test_a_module_without_variables():
    with pytest.raises(
        errors.UninitializedError, match=r"Net has no variables\. Bind them, module\.bind\(variables\)"
    ):
        jaxpar.data_parallel(Net(), X, [0, 1])
    with pytest.raises(errors.UninitializedError, match="has no variables"):
        jaxpar.replicate(Net(), [0, 1])


def test_variables_elsewhere(devices):
    net = jaxpar.DataParallel(Net(), [0, 1])
    variables = jax.device_put(variables_of(net), devices[3])
    with pytest.raises(
        errors.MisplacedError, match=r"found one of them on device: cpu:3\. It is .*BatchNorm_0"
    ):
        net.apply(variables, X, train=False)


def test_an_exception_in_forward():
    class Fails(nn.Module):
        def __call__(self, x):
            raise KeyError("wonderful")

    with pytest.raises(KeyError, match="wonderful") as caught:
        jaxpar.DataParallel(Fails(), [0, 1]).apply({}, X)
    assert any("in replica 0 on device cpu:0" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("key", [jax.random.key(0), RNGS], ids=["a key", "streams"])
def test_the_first_weights_are_the_modules_own(net, key):
    bare = Net().init(key, X, train=False)
    outputs, variables = net.init_with_output(key, X, train=False)
    for found in (variables, net.init(key, X, train=False)):
        jax.tree.map(np.testing.assert_array_equal, {c: v["module"] for c, v in found.items()}, bare)
    np.testing.assert_array_equal(outputs, Net().apply(bare, X, train=False))


def test_variables_of_the_bare_module_work(net):
    variables = variables_of(net)
    bare = {collection: tree["module"] for collection, tree in variables.items()}
    rest = {"rngs": {"dropout": jax.random.key(2)}, "mutable": ["batch_stats"]}
    want, updates = net.apply(variables, X, **rest)
    got, bare_updates = net.apply(bare, X, **rest)
    np.testing.assert_array_equal(got, want)
    jax.tree.map(np.testing.assert_array_equal, bare_updates["batch_stats"], updates["batch_stats"]["module"])
    np.testing.assert_allclose(net.apply(bare, X, train=False), Net().apply(bare, X, train=False), rtol=1e-12)
    for tree in (bare, variables):
        bound = net.bind(tree)(X, train=False)
        np.testing.assert_allclose(bound, Net().apply(bare, X, train=False), rtol=1e-12)
