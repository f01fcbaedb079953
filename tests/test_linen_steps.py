"""train_step and eval_step of Linen modules: TrainState in, TrainState out, equal to pure Flax."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import jaxpar

N, STEPS = 2, 4
RANDOM = np.random.RandomState(0)
X, Y = RANDOM.randn(STEPS, 10, 3), RANDOM.randn(STEPS, 10, 1)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Dense(5, use_bias=False, param_dtype=jnp.float64)(x)
        x = nn.BatchNorm(use_running_average=not train, param_dtype=jnp.float64, use_fast_variance=False)(x)
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(1, param_dtype=jnp.float64)(jnp.tanh(x))


class State(TrainState):
    batch_stats: Any


def plain(module):
    return module


def data_parallel(module):
    return jaxpar.DataParallel(module, list(range(N)))


def distributed(module):
    return jaxpar.DistributedDataParallel(module, list(range(N)))


KINDS = [plain, data_parallel, distributed]


def state_of(net):
    variables = net.init(jax.random.key(0), X[0], train=False)
    variables = jax.tree.map(lambda x: jnp.array(x, jnp.float64), variables)
    return State.create(
        apply_fn=net.apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        tx=optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.1)),
    )


STATS = state_of(Net()).batch_stats


def loss_fn(net, rngs, x, y):
    return ((net(x, rngs=rngs) - y) ** 2).mean()


def by_hand(kind, state, x, y, keys):
    """One step in pure Flax: every replica has its own rows and key, and replica 0's statistics stay."""
    pieces = list(zip(*(np.split(rows, len(keys)) for rows in (x, y)), keys, strict=True))

    def of_each(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        for rows, targets, key in pieces:
            outputs, updates = Net().apply(variables, rows, rngs={"dropout": key}, mutable=["batch_stats"])
            yield (outputs - targets) ** 2, updates

    def loss(params):
        errors, updates = zip(*of_each(params), strict=True)
        return jnp.mean(jnp.concatenate(errors)), updates[0]  # equal pieces: the mean of the means as well

    (value, updates), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
    return value, state.apply_gradients(grads=gradients, batch_stats=updates["batch_stats"])


def key_streams(kind):
    """Of each replica, written without the library: docs/semantics.md row 57."""
    key = jax.random.key(3)
    if kind is plain:
        return [nnx.Rngs(dropout=key)]
    return [nnx.Rngs(dropout=jax.random.fold_in(key, i)) for i in range(N)]


def close(got, want):
    a, b = (jax.tree.leaves(state) for state in (got, want))
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-13)


def run(kind, loss_fn=loss_fn):
    ours, theirs, net = state_of(kind(Net())), state_of(Net()), kind(Net())
    step, rngs, streams = jaxpar.train_step(net, ours, loss_fn), nnx.Rngs(dropout=3), key_streams(kind)
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):
        loss = step(rngs, x, y)
        value, theirs = by_hand(kind, theirs, x, y, [stream.dropout() for stream in streams])
        np.testing.assert_allclose(loss, value, rtol=1e-11)
        close(step.state, theirs)
        assert (int(step.state.step), int(rngs.dropout.count[...])) == (i + 1, i + 1)
    return net, step, theirs


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_step_is_the_one_by_hand(kind):
    net, step, theirs = run(kind)
    assert isinstance(step.state, State)
    assert jax.tree.structure(step.state.params) == jax.tree.structure(state_of(net).params)
    evaluate = jaxpar.eval_step(net, lambda net, x: net(x, train=False))
    variables = {"params": theirs.params, "batch_stats": theirs.batch_stats}
    want = Net().apply(variables, X[0], train=False)
    for given in (
        step.state,
        step.state,
        {"params": step.state.params, "batch_stats": step.state.batch_stats},
    ):
        np.testing.assert_allclose(evaluate(given, X[0]), want, rtol=1e-11)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_planted_fault_is_found(kind):
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        run(kind, lambda *args: loss_fn(*args) * (1 + 1e-9))


class Averages(State):
    """A state that keeps an average, as many do: its own `apply_gradients` is what runs."""

    average: Any = None

    def apply_gradients(self, *, grads, **rest):
        after = super().apply_gradients(grads=grads, **rest)
        mixed = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, self.average, after.params)
        return after.replace(average=mixed)


@pytest.mark.full
def test_the_states_own_update_runs():
    made = state_of(Net())
    state = Averages(**{name: getattr(made, name) for name in vars(made)}, average=made.params)
    first = jax.tree.map(np.asarray, made.params)
    step = jaxpar.train_step(Net(), jax.tree.map(jnp.copy, state), loss_fn)
    step(nnx.Rngs(dropout=3), X[0], Y[0])
    after = step.state
    expected = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * np.asarray(p), first, after.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), after.average, expected)


@pytest.mark.full
def test_a_module_without_other_collections_and_two_of_them():
    class Plain(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3, param_dtype=jnp.float64)(x)

    def state(seed):
        params = Plain().init(jax.random.key(seed), X[0])["params"]
        return TrainState.create(apply_fn=Plain().apply, params=params, tx=optax.sgd(0.1))

    def loss(nets, x):
        return ((nets[1](nets[0](x)) - x) ** 2).mean()

    step = jaxpar.train_step((Plain(), Plain()), (state(0), state(1)), loss)
    got = float(step(X[0]))
    params = state(0).params, state(1).params

    def objective(params):
        nets = [lambda x, p=p: Plain().apply({"params": p}, x) for p in params]
        return loss(nets, X[0])

    value, gradients = jax.value_and_grad(objective)(params)
    np.testing.assert_allclose(got, value, rtol=1e-12)
    close([each.params for each in step.state], jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients))


class Averaged(State):
    target_params: Any


def mse(net, x, y):
    return ((net(x, train=False) - y) ** 2).mean()


@pytest.mark.parametrize("collections", [["params"], ["params", "batch_stats"]], ids=len)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_params_may_be_all_variables(kind, collections):
    """As `params=net.init(...)` in a TrainState of the user's: `apply_fn(state.params, x)`."""
    whole = {name: state_of(Net()).params if name == "params" else STATS for name in collections}
    rest = None if "batch_stats" in whole else STATS

    def apply(variables, x):
        return Net().apply(variables if rest is None else {**variables, "batch_stats": rest}, x, train=False)

    theirs = Averaged.create(
        apply_fn=apply, params=whole, batch_stats=rest, target_params=whole, tx=optax.adam(0.1)
    )
    step = jaxpar.train_step(kind(Net()), jax.tree.map(jnp.copy, theirs), mse)
    for x, y in zip(X, Y, strict=True):
        value, gradients = jax.value_and_grad(lambda p: ((apply(p, x) - y) ** 2).mean())(theirs.params)  # noqa: B023
        theirs = theirs.apply_gradients(grads=gradients)
        np.testing.assert_allclose(step(x, y), value, rtol=1e-11)
        close(step.state.params, theirs.params)
    assert jax.tree.structure(step.state) == jax.tree.structure(theirs)
    outputs = jaxpar.eval_step(kind(Net()), lambda net, x: net(x, train=False))(step.state, X[0])
    close(outputs, apply(theirs.params, X[0]))
    with pytest.raises(AssertionError):
        close(step.state.params, whole)  # a planted fault: the parameters as they were


@pytest.mark.parametrize("kind", [data_parallel, distributed], ids=lambda kind: kind.__name__)
def test_all_variables_of_the_wrappers_own_init(kind):
    net = kind(nn.Dense(1, param_dtype=jnp.float64))
    plain_state, state = (
        TrainState.create(apply_fn=net.apply, params=params, tx=optax.sgd(0.1))
        for variables in [net.init(jax.random.key(0), X[0])]
        for params in (variables["params"], jax.tree.map(jnp.copy, variables))
    )
    steps = [
        jaxpar.train_step(net, s, lambda net, x, y: ((net(x) - y) ** 2).mean()) for s in (plain_state, state)
    ]
    for x, y in zip(X, Y, strict=True):
        assert steps[0](x, y) == steps[1](x, y)
    close(steps[1].state.params, {"params": steps[0].state.params})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_a_state_holds_may_be_an_argument(kind):
    """As a DQN passes `step.state.target_params`: the step donates it, and used to end the process."""

    class Dense(TrainState):
        target_params: Any

    def towards(net, target, x, y):
        return ((net(x) - x @ target["kernel"] - y) ** 2).mean()

    module = nn.Dense(1, param_dtype=jnp.float64, use_bias=False)
    params, target = ({"kernel": jnp.asarray(RANDOM.randn(3, 1))} for _ in range(2))
    steps = [
        jaxpar.train_step(kind(module), jax.tree.map(jnp.copy, state), towards)
        for state in [Dense.create(apply_fn=None, params=params, target_params=target, tx=optax.adam(0.1))]
        * 2
    ]
    for x, y in zip(X, Y, strict=True):
        for name in "target_params", "params":
            held, copied = (getattr(step.state, name) for step in steps)
            loss = steps[0](jaxpar.replicated(held), x, y)
            assert loss == steps[1](jaxpar.replicated(jax.tree.map(np.array, copied)), x, y)
    close(steps[0].state.params, steps[1].state.params)
    close(steps[0].state.target_params, target)


def test_what_is_refused():
    net = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
    with pytest.raises(
        TypeError, match=r"comes with a flax\.training\.train_state\.TrainState, not Optimizer"
    ):
        jaxpar.train_step(Net(), optimizer, loss_fn)
    with pytest.raises(TypeError, match=r"optimizer must be an nnx\.Optimizer, not State"):
        jaxpar.train_step(net, state_of(Net()), loss_fn)
    step = jaxpar.train_step(net, optimizer, lambda net, x: net(x).mean())
    with pytest.raises(AttributeError, match="an NNX module and its optimizer hold their own"):
        _ = step.state
