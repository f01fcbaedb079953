"""Outputs that a module marks as replicated are replica 0's, as buffers are, and are not gathered."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import assert_equal_numbers
from flax import linen, nnx

import jaxpar

IDS = [0, 1, 2, 3]
ROWS = 8, 10, 2
X, W = np.random.RandomState(0).randn(10, 3), jnp.asarray(np.random.RandomState(1).randn(3, 4))


def summary(x, state):
    """A state that depends on the rows and on the state before."""
    return {"mean": 0.9 * state["mean"] + (x**2).mean(0), "calls": state["calls"] + 1, "rows": x[:, 0]}


def of_function(w, x, state):
    return jnp.tanh(x @ w), jaxpar.replicated(summary(x, state))


class Net(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(W)

    def __call__(self, x, state):
        return of_function(self.w[...], x, state)


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x, state):
        return of_function(self.param("w", lambda key: W), x, state)


def linen_wrapped(ids):
    net = jaxpar.DataParallel(LinenNet(), ids)
    return lambda x, state: net.apply({"params": {"w": W}}, x, state)


def function_wrapped(ids):
    net = jaxpar.DataParallel(of_function, ids)
    return lambda x, state: net(jaxpar.replicated(W), x, state)


WRAPPED = {
    "function": function_wrapped,
    "nnx": lambda ids: jaxpar.DataParallel(Net(), ids),
    "linen": linen_wrapped,
    "pmap": lambda ids: jaxpar.DataParallel(Net(), ids, backend="pmap"),
    "data_parallel": lambda ids: lambda *args: jaxpar.data_parallel(Net(), args, ids),
}


def start():
    return {"mean": jnp.ones(3), "calls": jnp.zeros((), int)}


def expected(x, n):
    first = x[: -(-len(x) // n)]
    return np.tanh(x @ np.asarray(W)), summary(first, start())


def close(got, want):
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(want), strict=True):
        assert_equal_numbers(jax.tree_util.keystr(path), a, b)


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("B", ROWS)
@pytest.mark.parametrize("name", WRAPPED)
def test_they_are_replica_zeros(name, B, staged):
    if staged and name == "pmap":
        pytest.skip("pmap is not staged")
    net = WRAPPED[name](IDS)
    got = (jax.jit(net) if staged else net)(X[:B], jaxpar.replicated(start()))
    close(got, expected(X[:B], 4))
    assert got[1]["calls"].shape == ()


@pytest.mark.parametrize("name", WRAPPED)
def test_on_one_device_they_are_the_modules(name):
    got = WRAPPED[name]([0])(X, jaxpar.replicated(start()))
    close(got, expected(X, 1))
    assert isinstance(got[1]["mean"], jax.Array)


@pytest.mark.parametrize("ids", [[0], IDS])
def test_a_module_may_use_what_it_marks(ids):
    net = jaxpar.DataParallel(lambda x, w: x @ jaxpar.replicated(w), ids)
    close(net(X, jaxpar.replicated(W)), X @ np.asarray(W))


def test_modules_of_a_list_may_use_what_they_mark():
    (outputs,) = jaxpar.parallel_apply([lambda x: x @ jaxpar.replicated(W)], [X])
    close(outputs, X @ np.asarray(W))


def test_a_planted_fault_is_found():
    got = function_wrapped(IDS)(X, jaxpar.replicated(start()))
    with pytest.raises(AssertionError):
        close(got, (got[0], summary(X, start())))


def test_gradients_are_those_of_replica_zero():
    def objective(run):
        def loss(w, x):
            outputs, state = run(w, x)
            return (outputs**2).sum() + (state["mean"] * jnp.arange(3.0)).sum() * outputs.mean()

        return jax.grad(loss, (0, 1))(W, X)

    def by_hand(w, x):
        return jnp.tanh(x @ w), jax.tree.map(jnp.asarray, summary(x[:3] @ w[:, :3], start()))

    def squared(w, x):
        return jnp.tanh(x @ w), jaxpar.replicated(summary(x @ w[:, :3], jaxpar_start))

    jaxpar_start = start()
    net = jaxpar.DataParallel(squared, IDS)
    close(objective(lambda w, x: net(jaxpar.replicated(w), x)), objective(by_hand))


def test_an_argument_that_is_passed_on_is_gathered_as_before():
    net = jaxpar.DataParallel(lambda x, m: (x, m), IDS)
    assert net(X, jaxpar.replicated(jnp.ones((2, 3))))[1].shape == (8, 3)
    marking = jaxpar.DataParallel(lambda x, m: (x, jaxpar.replicated(m)), IDS)
    assert marking(X, jaxpar.replicated(jnp.ones((2, 3))))[1].shape == (2, 3)


def test_the_verbs():
    placement = jaxpar.Placement(tuple(jaxpar.devices()[:4]))
    replicas = jaxpar.replicate(Net(), placement.devices)
    inputs = jaxpar.scatter((X, jaxpar.replicated(start())), placement)
    shards = jaxpar.parallel_apply(replicas, inputs)
    close(shards[3][1], summary(X[9:], start()))  # each replica has its own
    close(jaxpar.gather(shards), expected(X, 4))
    close(jaxpar.gather(jaxpar.scatter(jaxpar.replicated(start()), placement)), start())


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_under_a_mesh_of_the_users(kind):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(getattr(jax.sharding.AxisType, kind),))
    with jax.set_mesh(mesh):
        net, state = jaxpar.DataParallel(Net(), IDS), jaxpar.replicated(start())
        for x in (X[:8], X):
            outputs, after = jax.jit(net)(x, state)
            outputs, after = net(x, jaxpar.replicated({key: after[key] for key in ("mean", "calls")}))
            close(outputs, expected(x, 4)[0])
            assert (int(after["calls"]), after["mean"].shape) == (2, (3,))


def test_float32_of_a_loop_that_carries_a_state():
    with jax.enable_x64(False):
        apply = jaxpar.DataParallel(of_function, IDS)
        w, x, state, alone = W.astype(jnp.float32), X.astype(np.float32), start(), start()

        @jax.jit
        def step(w, x, state):
            outputs, state = apply(jaxpar.replicated(w), x, jaxpar.replicated(state))
            return outputs.sum(), {key: state[key] for key in ("mean", "calls")}

        for _ in range(3):
            total, state = step(w, x, state)
            alone = summary(x[:3], alone)
        np.testing.assert_allclose(state["mean"], alone["mean"], rtol=1e-6)
        assert (int(state["calls"]), total.shape) == (3, ())
