"""sow and capture_intermediates of Linen modules, and net.variables, under every wrapper and in steps."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

import jaxpar

IDS = [0, 1, 2, 3]
X = np.random.RandomState(0).randn(10, 4)
COLLECTIONS = ["intermediates", "losses", "batch_stats"]


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(6, use_bias=False, param_dtype=jnp.float64)(x)
        self.sow("intermediates", "hidden", x)
        self.sow("losses", "sum", (x**2).sum())
        x = nn.BatchNorm(use_running_average=False, axis_name="batch", param_dtype=jnp.float64)(x)
        return nn.Dense(2, param_dtype=jnp.float64)(jnp.tanh(x))


def variables():
    made = Net().init(jax.random.key(0), X)
    return {
        name: jax.tree.map(lambda x: x.astype(jnp.float64), made[name]) for name in ("params", "batch_stats")
    }


def plain(net, ids):
    return net


def by_hand(net):
    """One device, where the axis of BatchNorm is one replica."""
    return jaxpar.DataParallel(net, [0])


def equal(got, want):
    got, want = (dict(jax.tree.leaves_with_path(tree)) for tree in (got, want))
    assert got.keys() == want.keys()
    for path, x in want.items():
        if jnp.ndim(x) and jnp.ndim(got[path]):  # one device sows a scalar, four a vector
            np.testing.assert_allclose(got[path], x, rtol=1e-10, err_msg=jax.tree_util.keystr(path))


WRAPPERS = [jaxpar.DataParallel, jaxpar.DistributedDataParallel]
CAPTURES = [False, True, lambda module, method: isinstance(module, nn.Dense)]


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("B", [8, 10, 3])
@pytest.mark.parametrize("wrap", WRAPPERS)
def test_values_equal_one_device(wrap, B):
    net = wrap(Net(), IDS)
    for capture in CAPTURES if B == 10 else CAPTURES[1:2]:
        options = {"mutable": COLLECTIONS, "capture_intermediates": capture}
        want = by_hand(Net()).apply(variables(), X[:B], **options)
        got = net.apply(variables(), X[:B], **options)
        equal(got, want)
        sums = [(piece**2).sum() for piece in pieces(want[1]["intermediates"]["hidden"][0])]
        np.testing.assert_allclose(got[1]["losses"]["sum"][0], sums, rtol=1e-12)


def pieces(x):
    size = -(-len(x) // 4)
    return [x[i : i + size] for i in range(0, len(x), size)]


@pytest.mark.full
def test_in_jit():
    net = jaxpar.DataParallel(Net(), IDS)
    got = jax.jit(lambda v, x: net.apply(v, x, mutable=COLLECTIONS, capture_intermediates=True))(
        variables(), X
    )
    equal(got, by_hand(Net()).apply(variables(), X, mutable=COLLECTIONS, capture_intermediates=True))


def test_what_was_sown_before_comes_first():
    found = []
    for net in (by_hand(Net()), jaxpar.DataParallel(Net(), IDS)):
        _, first = net.apply(variables(), X, mutable=COLLECTIONS)
        _, second = net.apply({"params": variables()["params"], **first}, 2 * X, mutable=COLLECTIONS)
        assert len(second["intermediates"]["hidden"]) == len(second["losses"]["sum"]) == 2
        found.append(second)
    equal(*found)


def test_a_submodule_called_twice():
    class Twice(nn.Module):
        parallel: bool

        @nn.compact
        def __call__(self, x):
            net = jaxpar.DataParallel(Net(), IDS if self.parallel else [0], name="net")
            return net(x), net(2 * x)

    made = Twice(False).init(jax.random.key(0), X)
    made = {
        name: jax.tree.map(lambda x: x.astype(jnp.float64), made[name]) for name in ("params", "batch_stats")
    }
    options = {"mutable": COLLECTIONS, "capture_intermediates": True}
    equal(*(Twice(parallel).apply(made, X, **options) for parallel in (True, False)))


class State(TrainState):
    batch_stats: Any


def state_of(wrap):
    nested = wrap is jaxpar.DataParallel
    made = {name: {"module": tree} if nested else tree for name, tree in variables().items()}
    return State.create(apply_fn=None, tx=optax.sgd(0.1), **made)


def loss_fn(net, x):
    """An L2 penalty of net.variables, and captured values."""
    y, updates = net(x, mutable=["intermediates"], capture_intermediates=True)
    penalty = sum((w**2).sum() for w in jax.tree.leaves(net.variables["params"]))
    hidden = updates["intermediates"]["hidden"][0]
    assert set(updates) == {"intermediates"}
    return (y**2).mean() + 0.1 * penalty + (hidden**2).mean(), updates


def value_by_hand(params, statistics, x):
    y, updates = by_hand(Net()).apply(
        {"params": params, "batch_stats": statistics}, x, mutable=COLLECTIONS[::2], capture_intermediates=True
    )
    penalty = sum((w**2).sum() for w in jax.tree.leaves(params))
    hidden = updates["intermediates"]["hidden"][0]
    return (y**2).mean() + 0.1 * penalty + (hidden**2).mean(), updates


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("wrap", [plain, *WRAPPERS])
def test_in_a_step(wrap):
    x = X[:8]
    step = jaxpar.train_step(wrap(Net(), IDS), state_of(wrap), loss_fn, has_aux=True)
    params, statistics = variables().values()
    for _ in range(2):
        loss, aux = step(x)
        (want, updates), gradients = jax.value_and_grad(value_by_hand, has_aux=True)(params, statistics, x)
        params, statistics = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), updates["batch_stats"]
        np.testing.assert_allclose(loss, want, rtol=1e-10)
        equal(aux, {"intermediates": updates["intermediates"]})
    got = step.state.params["module"] if wrap is jaxpar.DataParallel else step.state.params
    equal(got, params)
    evaluate = jaxpar.eval_step(wrap(Net(), IDS), lambda net, x: net(x, mutable=["intermediates"]))
    outputs, found = evaluate(step.state, X)
    want = by_hand(Net()).apply({"params": params, "batch_stats": statistics}, X, mutable=COLLECTIONS)
    np.testing.assert_allclose(outputs, want[0], rtol=1e-10)
    np.testing.assert_allclose(found["intermediates"]["hidden"][0], want[1]["intermediates"]["hidden"][0])


@pytest.mark.parametrize("wrap", [plain, *WRAPPERS])
def test_a_collection_of_the_state_may_be_asked_for(wrap):
    def loss(net, x):
        y, updates = net(x, mutable=["batch_stats"])
        return (y**2).mean(), updates

    step = jaxpar.train_step(wrap(Net(), IDS), state_of(wrap), loss, has_aux=True)
    _, updates = step(X[:8])
    _, want = by_hand(Net()).apply(variables(), X[:8], mutable=["batch_stats"])
    got = step.state.batch_stats
    equal(got["module"] if wrap is jaxpar.DataParallel else got, want["batch_stats"])
    assert set(updates) == {"batch_stats"}


@pytest.mark.full
def test_value_and_grad_returns_them_as_aux():
    def loss(net, x):
        y = net(x)
        return (y**2).mean() + (net.variables["params"]["Dense_0"]["kernel"] ** 2).sum(), (
            net.variables["intermediates"]
        )

    net = jaxpar.DistributedDataParallel(Net(), IDS)
    value_and_grad = net.value_and_grad(loss, has_aux=True, mutable=["batch_stats", "intermediates"])
    ((_, aux), _), _ = value_and_grad(variables(), X)
    _, want = by_hand(Net()).apply(variables(), X, mutable=COLLECTIONS)
    equal(aux, want["intermediates"])


def test_net_variables_of_other_modules():
    """DataParallel of an NNX module has none, as the module has none."""
    from flax import nnx

    net = jaxpar.DataParallel(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), IDS)
    assert not hasattr(net, "variables")
    with pytest.raises(AttributeError, match="variables"):
        _ = net.variables
