"""Functions of parameters, Equinox modules and Haiku transforms in train_step, beside hand-written steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as linen
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

import jaxpar
from jaxpar.errors import (
    DeletedError,
    LeafError,
    NonFiniteError,
    OptimizerError,
    ParametersError,
    UninitializedError,
)

N, STEPS = 2, 4
RANDOM = np.random.RandomState(0)
X, Y = RANDOM.randn(STEPS, 7, 4, 4, 1), RANDOM.randn(STEPS, 7, 1)
TX = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.1))


def plain(net):
    return net


def data_parallel(net):
    return jaxpar.DataParallel(net, list(range(N)))


def distributed(net):
    return jaxpar.DistributedDataParallel(net, list(range(N)))


KINDS = [plain, data_parallel, distributed]


@dataclasses.dataclass(frozen=True)
class Case:
    """`by_hand(params, buffers, key, x)` returns outputs and buffers of one replica's rows."""

    net: Callable[[], Any]
    state: Callable[[Any], Any]  # the state of a net
    loss_fn: Callable[..., Any]  # of the net, a key, rows and targets
    by_hand: Callable[..., Any]
    maps: bool = False  # a module of one row: vmap maps over all rows of a DataParallel, with the same keys


def mse(outputs, y):
    return ((outputs - y) ** 2).mean()


# --------------------------------------------------------------------------------- a function of params


class Layer(NamedTuple):
    w: Any
    b: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Scale:
    factor: Any
    rate: float = dataclasses.field(metadata={"static": True}, default=0.5)


def awkward():
    """A tree in which names, containers and kinds of leaves are what users have."""
    random = np.random.RandomState(1)
    return {
        "a.b": {"w": random.randn(16, 3)},
        "a": {"b.w": jnp.arange(3), "none": None},
        "numbered": {7: jnp.ones(()), 3: jnp.zeros(2, jnp.float32)},
        "layers": [Layer(jnp.asarray(random.randn(3, 3)), jnp.zeros(3)), {}, ()],
        "scale": Scale(jnp.ones(1)),
        "bias": 0.25,
        "name": "mlp",
        "heads": 2,
    }


def without_text():
    """TrainState.create makes moments of all leaves, integers too, and optax has none of a text."""
    return {name: x for name, x in awkward().items() if name != "name"}


def function(params, x):
    x = jnp.tanh(x.reshape(len(x), -1) @ params["a.b"]["w"])
    w, b = params["layers"][0]
    shifted = x @ w + b * params["heads"] + params["a"]["b.w"] + params["bias"] * params["numbered"][7]
    return jnp.tanh(shifted).sum(-1, keepdims=True) * params["scale"].factor * params["scale"].rate


# -------------------------------------------------------------------------------------------- Equinox


class CNN(eqx.Module):
    conv: eqx.nn.Conv2d
    dropout: eqx.nn.Dropout
    head: eqx.nn.Linear
    activation: Callable[..., Any]

    def __init__(self):
        keys = jax.random.split(jax.random.key(0), 2)
        self.conv = eqx.nn.Conv2d(1, 2, 3, key=keys[0], dtype=float)
        self.dropout = eqx.nn.Dropout(0.5)
        self.head = eqx.nn.Linear(8, 1, key=keys[1], dtype=float)
        self.activation = jax.nn.relu

    def __call__(self, x, key=None):
        x = self.dropout(self.activation(self.conv(jnp.moveaxis(x, -1, 0))), key=key)
        return self.head(x.reshape(-1))


def each_row(model, key, x):
    return jax.vmap(model)(x, jax.random.split(key, len(x)))


def mlp():
    model = eqx.nn.MLP(16, 1, 5, 2, key=jax.random.key(0), dtype=float)
    return eqx.nn.Sequential([eqx.nn.Lambda(jnp.ravel), model])


class Normalised(eqx.Module):
    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self, mode):
        self.linear = eqx.nn.Linear(16, 1, use_bias=False, key=jax.random.key(0), dtype=float)
        self.norm = eqx.nn.BatchNorm(1, "batch", mode=mode, dtype=float)

    def __call__(self, x, state):
        return self.norm(self.linear(x.reshape(-1)), state)


def with_statistics(model, buffers, x):
    mapped = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    return mapped(x, buffers)


def normalised_loss(model, buffers, key, x, y):
    outputs, buffers = with_statistics(model, buffers, x)
    return mse(outputs, y), buffers


# ---------------------------------------------------------------------------------------------- Haiku


def haiku(x, train=True):
    x = hk.BatchNorm(True, True, 0.9)(hk.Linear(5, with_bias=False)(hk.Flatten()(x)), train)
    x = hk.dropout(hk.next_rng_key(), 0.5, x) if train else x
    return hk.Linear(1)(jnp.tanh(x))


TRANSFORMED = hk.transform_with_state(haiku)
WITHOUT_STATE = hk.transform(lambda x: hk.Linear(1)(hk.dropout(hk.next_rng_key(), 0.5, hk.Flatten()(x))))


def haiku_state(net):
    params, buffers = net.init(jax.random.key(0), X[0])
    return jaxpar.FunctionState.create(params, TX, buffers=buffers)


def keyed_loss(net, key, x, y):
    return mse(net(key, x), y)


def unkeyed_loss(net, key, x, y):
    return mse(net(x), y)


def of_module(state):
    return state.params if isinstance(state, (jaxpar.FunctionState, TrainState)) else state[0]


CASES = {
    "function": Case(
        lambda: function, lambda net: (awkward(), TX), unkeyed_loss, lambda p, b, k, x: (function(p, x), b)
    ),
    "TrainState": Case(
        lambda: function,
        lambda net: TrainState.create(apply_fn=None, params=without_text(), tx=TX),
        unkeyed_loss,
        lambda p, b, k, x: (function(p, x), b),
    ),
    "Equinox": Case(
        mlp,
        lambda net: TX,
        lambda model, key, x, y: mse(jax.vmap(model)(x), y),
        lambda p, b, k, x: (jax.vmap(p)(x), b),
        True,
    ),
    "Equinox dropout": Case(
        CNN,
        lambda net: (net, TX, TX.init(eqx.filter(net, eqx.is_inexact_array))),
        lambda model, key, x, y: mse(each_row(model, key, x), y),
        lambda p, b, k, x: (each_row(p, k, x), b),
        True,
    ),
    "Haiku": Case(
        lambda: WITHOUT_STATE,
        lambda net: (net.init(jax.random.key(0), X[0]), TX),
        keyed_loss,
        lambda p, b, k, x: (WITHOUT_STATE.apply(p, k, x), b),
    ),
    "Haiku state": Case(
        lambda: TRANSFORMED,
        haiku_state,
        keyed_loss,
        lambda p, b, k, x: TRANSFORMED.apply(p, b, k, x),
    ),
}


def start(case):
    """The net, its state, and params, buffers and optimizer state for the steps by hand."""
    net = case.net()
    state = case.state(net)
    if isinstance(state, optax.GradientTransformation):
        params, buffers = net, None
    elif type(state) is tuple:
        params, buffers = state[0], None
    else:
        params, buffers = state.params, getattr(state, "buffers", None)
    # The step takes over the arrays of its state.
    params, buffers = jax.tree.map(lambda x: x.copy() if hasattr(x, "copy") else x, (params, buffers))
    return net, state, jax.tree.map(as_array, params), buffers


def as_array(x):
    return jnp.asarray(x) if isinstance(x, np.ndarray) else x


def trained_of(params):
    """Floating arrays, and Python floats in containers, as docs/train_step.md has it."""
    if isinstance(params, dict) and isinstance(params.get("bias"), float):
        params = params | {"bias": jnp.asarray(params["bias"])}
    return eqx.partition(params, eqx.is_inexact_array)


def objective(case, kind, key, x, y, buffers, parts):
    """The loss by hand, as a function of what is trained, with replica 0's buffers."""
    n = 1 if kind is plain else N
    rows = np.split(np.arange(len(x)), [-(-len(x) // n)])[:n]

    def loss(trained):
        params, outputs, after = eqx.combine(trained, parts), [], []
        whole = case.maps and kind is data_parallel
        for i, r in enumerate([np.arange(len(x))] if whole else rows):
            own = key if n == 1 or whole else jax.random.fold_in(key, i)
            made, state = case.by_hand(params, buffers, own, x[r])
            outputs.append(made)
            after.append(state)
        if kind is distributed:
            return jnp.mean(jnp.stack([mse(o, y[r]) for o, r in zip(outputs, rows, strict=True)])), after[0]
        return mse(jnp.concatenate(outputs), y), after[0]

    return loss


def by_hand(case, kind, batches, params, buffers, accumulate=1):
    """Losses, parameters and buffers after optax's own loop."""
    trained, parts = trained_of(params)
    opt_state, losses, sums = TX.init(trained), [], None
    for i, batch in enumerate(batches):
        loss = objective(case, kind, *batch, buffers, parts)
        (value, buffers), gradients = jax.value_and_grad(loss, has_aux=True)(trained)
        sums = gradients if sums is None else jax.tree.map(jnp.add, sums, gradients)
        losses.append(value)
        if (i + 1) % accumulate == 0:
            updates, opt_state = TX.update(jax.tree.map(lambda g: g / accumulate, sums), opt_state, trained)
            trained, sums = optax.apply_updates(trained, updates), None
    return losses, eqx.combine(trained, parts), buffers


def batches_of(dtype=float):
    return [
        (jax.random.key(i), x.astype(dtype), y.astype(dtype))
        for i, (x, y) in enumerate(zip(X, Y, strict=True))
    ]


def close(got, want, rtol=1e-10, atol=1e-12):
    a, b = (eqx.filter(tree, eqx.is_array) for tree in (got, want))
    assert len(jax.tree.leaves(a)) == len(jax.tree.leaves(b))
    for (path, x), y in zip(jax.tree.leaves_with_path(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol, err_msg=jax.tree_util.keystr(path))


def run(name, kind, loss_fn=None, batches=None, **options):
    case = CASES[name]
    net, state, params, buffers = start(case)
    step = jaxpar.train_step(kind(net), state, loss_fn or case.loss_fn, **options)
    losses = [step(*batch) for batch in (batches_of() if batches is None else batches)]
    return step, losses, (params, buffers)


@pytest.mark.full
@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_by_hand(name, kind):
    """Uneven batches of 7 rows: 4 and 3."""
    step, losses, start_of = run(name, kind)
    want, params, buffers = by_hand(CASES[name], kind, batches_of(), *start_of)
    np.testing.assert_allclose(losses, want, rtol=1e-10)
    close(step.state.params, params)
    close(step.state.buffers if buffers is not None else None, buffers)
    assert jax.tree.structure(step.state.params) == jax.tree.structure(params)


@pytest.mark.sampled(5)
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", ["function", "Equinox dropout", "Haiku state"])
def test_a_planted_fault_is_found(name, kind):
    loss_fn = CASES[name].loss_fn
    step, _, start_of = run(name, kind, lambda *args: loss_fn(*args[:-1], args[-1] * (1 + 1e-8)))
    _, params, _ = by_hand(CASES[name], kind, batches_of(), *start_of)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        close(step.state.params, params)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_module_buffers(kind, mode):
    """Equinox's BatchNorm: the loss function is given its state and returns the new one."""
    model, buffers = eqx.nn.make_with_state(Normalised)(mode)
    case = Case(None, None, normalised_loss, lambda p, b, k, x: with_statistics(p, b, x))
    params = jax.tree.map(lambda x: x.copy() if eqx.is_array(x) else x, model)
    copied = jax.tree.map(jnp.copy, buffers)
    state = jaxpar.FunctionState.create(model, TX, buffers=buffers)
    if kind is data_parallel:
        frozen = kind(eqx.nn.inference_mode(model))
        outputs = jax.vmap(lambda x: frozen(x, buffers)[0])(X[0])
        np.testing.assert_allclose(outputs, with_statistics(frozen.module, buffers, X[0])[0], rtol=1e-10)
    for mark in (lambda x: x, jaxpar.replicated) if kind is distributed else ():
        with pytest.raises(TypeError, match=r"eqx\.nn\.State has no rows.* Train with train_step"):
            kind(model).value_and_grad(normalised_loss, has_aux=True)(model, mark(copied), X[0])
    step = jaxpar.train_step(kind(model), state, normalised_loss)
    losses = [step(*batch) for batch in batches_of()]
    # The axis of a vmap around a DataParallel has all rows, so the numbers are those of one device.
    alone = plain if kind is data_parallel else kind
    want, params, after = by_hand(case, alone, batches_of(), params, copied)
    np.testing.assert_allclose(losses, want, rtol=1e-10)
    close(step.state.params, params)
    close(step.state.buffers, after)
    evaluate = jaxpar.eval_step(kind(model), lambda model, buffers, x: with_statistics(model, buffers, x)[0])
    want = with_statistics(eqx.nn.inference_mode(params), after, X[0])[0]
    np.testing.assert_allclose(evaluate(step.state, X[0]), want, rtol=1e-10)
    bad = jaxpar.train_step(kind(model), step.state, lambda m, b, k, x, y: normalised_loss(m, b, k, x, y)[0])
    with pytest.raises(TypeError, match=r"the loss function of a module returns \(loss, buffers\)"):
        bad(*batches_of()[0])


@pytest.mark.full
@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", ["function", "Equinox dropout", "Haiku state"])
def test_float32(name, kind):
    with jax.enable_x64(False):
        step, losses, start_of = run(name, kind, batches=batches_of(np.float32)[:2])
        want, params, _ = by_hand(CASES[name], kind, batches_of(np.float32)[:2], *start_of)
    np.testing.assert_allclose(losses, want, rtol=2e-6)
    # Adam's first steps are its rate times a sign, so a gradient's rounding shows where it is near zero.
    close(step.state.params, params, rtol=1e-6, atol=1e-6)


@pytest.mark.sampled(5)
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", ["function", "Equinox dropout", "Haiku state"])
def test_accumulation_and_an_update_that_is_left_out(name, kind):
    """Four calls, two updates, and before them one call whose gradient is infinite."""
    options = {"accumulate": 2, "on_nonfinite": "skip"}
    broken = [(key, x * np.inf, y) for key, x, y in batches_of()[:2]]
    step, losses, start_of = run(
        name, kind, batches=broken if name != "Haiku state" else batches_of()[:0], **options
    )
    losses = [step(*batch) for batch in batches_of()]
    want, params, _ = by_hand(CASES[name], kind, batches_of(), *start_of, accumulate=2)
    np.testing.assert_allclose(losses, want, rtol=1e-10)
    close(step.state.params, params)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_precision_is_that_of_a_module(kind):
    """A function, an Equinox module and an NNX module of one layer, with a loss scale."""
    from flax import nnx

    x, y = X[:, :6].reshape(STEPS, 6, -1).astype(np.float32), Y[:, :6].astype(np.float32)
    dense = nnx.Linear(16, 1, param_dtype=jnp.float32, rngs=nnx.Rngs(0))
    params = {"w": jnp.copy(dense.kernel[...]), "b": jnp.copy(dense.bias[...])}
    linear = eqx.tree_at(
        lambda m: (m.weight, m.bias),
        eqx.nn.Linear(16, 1, key=jax.random.key(0)),
        (params["w"].T.copy(), params["b"].copy()),
    )
    policy = {"precision": jaxpar.Precision("float16", loss_scale=2.0**20)}  # halved at first
    net = kind(dense)
    optimizer = nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param)
    steps = [
        jaxpar.train_step(net, optimizer, lambda net, x, y: mse(net(x), y), **policy),
        jaxpar.train_step(
            kind(lambda p, x: x @ p["w"] + p["b"]),
            (params, optax.adam(0.1)),
            lambda net, x, y: mse(net(x), y),
            **policy,
        ),
        jaxpar.train_step(
            kind(linear), optax.adam(0.1), lambda model, x, y: mse(jax.vmap(model)(x), y), **policy
        ),
    ]
    losses = [[float(step(*batch)) for batch in zip(x, y, strict=True)] for step in steps]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-3)
    for step in steps[1:]:
        assert step.state_dict()["step"] == steps[0].state_dict()["step"]
        assert {leaf.dtype for leaf in jax.tree.leaves(eqx.filter(step.state.params, eqx.is_array))} == {
            jnp.dtype("float32")
        }
    np.testing.assert_allclose(steps[1].state.params["w"], dense.kernel[...], rtol=2e-3)
    np.testing.assert_allclose(steps[2].state.params.weight.T, dense.kernel[...], rtol=2e-3)


@pytest.mark.full
@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", CASES)
def test_a_restart_is_bit_identical(name, kind, tmp_path):
    case, batches = CASES[name], batches_of()
    step, _, _ = run(name, kind, batches=batches[:3], accumulate=2)
    with jaxpar.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(3, state=step.state, step=step)
    expected = step(*batches[3])

    net = case.net()
    fresh = jaxpar.train_step(kind(net), case.state(net), case.loss_fn, accumulate=2)
    restored = jaxpar.Checkpointer(tmp_path).restore(state=fresh.state)
    again = jaxpar.train_step(kind(net), restored.trees["state"], case.loss_fn, accumulate=2)
    jaxpar.Checkpointer(tmp_path).restore(state=again.state, step=again)
    np.testing.assert_array_equal(again(*batches[3]), expected)
    jaxpar.check_replicas(again.state)
    one, other = step.state, again.state
    for (path, x), y in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(other), strict=True):
        if eqx.is_array(x):
            np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_evaluation(kind):
    """In evaluation mode, with a state or the parameters alone; a module's flags are Equinox's."""
    step, _, _ = run("Equinox dropout", kind, batches=batches_of()[:1])
    evaluate = jaxpar.eval_step(kind(CNN()), lambda model, x: jax.vmap(model)(x))
    want = jax.vmap(eqx.nn.inference_mode(step.state.params))(X[0])
    for given in (step.state, step.state.params):
        np.testing.assert_allclose(evaluate(given, X[0]), want, rtol=1e-10)

    step, _, _ = run("Haiku state", kind, batches=batches_of()[:1])
    evaluate = jaxpar.eval_step(kind(TRANSFORMED), lambda net, x: net(None, x, train=False))
    want, _ = TRANSFORMED.apply(step.state.params, step.state.buffers, None, X[0], train=False)
    np.testing.assert_allclose(evaluate(step.state, X[0]), want, rtol=1e-10)

    step, _, _ = run("function", kind, batches=batches_of()[:1])
    np.testing.assert_allclose(
        jaxpar.eval_step(kind(function))(step.state, X[0]), function(step.state.params, X[0]), rtol=1e-10
    )


@pytest.mark.full
def test_what_a_step_is_given_and_gives():
    net, state, _, _ = start(CASES["function"])
    step = jaxpar.train_step(data_parallel(net), state, CASES["function"].loss_fn)
    step(*batches_of()[0])
    after = step.state
    assert isinstance(after, jaxpar.FunctionState)
    assert after.params["name"] == "mlp"
    assert after.params["heads"] == 2
    np.testing.assert_array_equal(after.params["a"]["b.w"], np.arange(3))
    assert isinstance(after.params["layers"][0], Layer)
    again = jaxpar.train_step(data_parallel(net), after, CASES["function"].loss_fn)
    assert np.isfinite(again(*batches_of()[1]))

    def penalty(net, x):
        return net(x).sum() + sum((p**2).sum() for p in jax.tree.leaves(net.params))

    params = {"w": jnp.full((4, 1), 2.0, jnp.bfloat16)}
    step = jaxpar.train_step(distributed(lambda p, x: x @ p["w"]), (params, optax.sgd(0.125)), penalty)
    assert step(jnp.ones((4, 4), jnp.bfloat16)) == 32
    np.testing.assert_array_equal(step.state.params["w"], jnp.full((4, 1), 2 - 0.125 * (2 + 4), jnp.bfloat16))


@pytest.mark.full
def test_two_functions_with_an_optimizer_each():
    def loss(nets, x):
        a, model = nets
        return mse(jax.vmap(model)(a(x)), x[:, :1])

    params, model = {"w": jnp.asarray(RANDOM.randn(3, 16))}, mlp()
    copied = jax.tree.map(lambda x: x.copy() if eqx.is_array(x) else x, (params, model))
    step = jaxpar.train_step(
        [data_parallel(lambda p, x: x @ p["w"]), data_parallel(model)],
        [(params, optax.sgd(0.1)), optax.sgd(0.2)],
        loss,
    )
    x = RANDOM.randn(7, 3)
    got = step(x)
    value, gradients = eqx.filter_value_and_grad(lambda both: loss((lambda x: x @ both[0]["w"], both[1]), x))(
        copied
    )
    np.testing.assert_allclose(got, value, rtol=1e-10)
    close(step.state[0].params, jax.tree.map(lambda p, g: p - 0.1 * g, copied[0], gradients[0]))
    close(step.state[1].params, eqx.apply_updates(copied[1], jax.tree.map(lambda g: -0.2 * g, gradients[1])))


REFUSED = {
    "a tree alone": (lambda: (function, awkward()), TypeError, r"\(params, tx, opt_state\), .* not dict"),
    "a transformation alone": (lambda: (function, TX), TypeError, "a function comes with its parameters"),
    "no transformation": (
        lambda: (function, ({"w": X}, 3)),
        TypeError,
        r"optax transf.* not \(dict, int\)",
    ),
    "another opt_state": (
        lambda: (function, ({"w": X}, TX, TX.init({"v": X}))),
        OptimizerError,
        "opt_state is not the one that tx.init makes for the floating arrays of params: it has 3",
    ),
    "another shape": (
        lambda: (function, ({"w": X}, TX, TX.init({"w": X[0]}))),
        OptimizerError,
        "opt_state is not the one",
    ),
    "integers": (lambda: (function, ({"w": np.arange(3)}, TX)), ParametersError, "nothing to train"),
    "a class": (lambda: (CNN, TX), TypeError, "net must be an nnx.Module"),
}


@pytest.mark.parametrize("kind", [plain, distributed], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name, kind):
    make, error, text = REFUSED[name]
    net, state = make()
    with pytest.raises(error, match=text):
        jaxpar.train_step(net if isinstance(net, type) else kind(net), state, unkeyed_loss)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_errors_name_the_leaf(kind):
    step = jaxpar.train_step(
        kind(lambda p, x: x * jnp.sqrt(p["a"]["w"]) + p["b"]),
        ({"a": {"w": jnp.zeros(1)}, "b": jnp.zeros(1)}, optax.sgd(0.1)),
        lambda net, x: net(x).mean(),
    )
    step(jnp.ones((4, 1)))
    with pytest.raises(NonFiniteError, match=r"the gradient of (module\.)?params\.a\.w was not finite"):
        step.check()
    params = {"w": jnp.ones(3)}
    step = jaxpar.train_step(kind(lambda p, x: x * p["w"]), (params, TX), lambda net, x: net(x).mean())
    for leaf in jax.tree.leaves(step.state.params):
        leaf.delete()
    with pytest.raises(DeletedError, match=r"train_step: module\.(module\.)?params\.w .* donated"):
        step(jnp.ones((4, 3)))


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("wrapper", [jaxpar.DataParallel, jaxpar.DistributedDataParallel])
def test_vmap_maps_over_the_rows_of_all_devices(wrapper, n):
    """Rows that are uneven, arguments that are not mapped, keyword arguments and gradients."""
    model, key = CNN(), jax.random.key(1)
    net = wrapper(model, list(range(n)))
    calls = {
        "rows": lambda f: jax.vmap(f)(X[0], jax.random.split(key, 7)),
        "raw keys": lambda f: jax.vmap(f)(X[0], jax.random.split(jax.random.PRNGKey(1), 7)),
        "a key": lambda f: jax.vmap(f, in_axes=(0, None))(X[0], key),
        "a marked key": lambda f: jax.vmap(f, in_axes=(0, None))(X[0], jaxpar.replicated(key)),
        "keywords": lambda f: jax.vmap(lambda x: f(x, key=key))(X[0]),
        "an axis": lambda f: jax.vmap(f, in_axes=(1, None))(np.moveaxis(X[0], 0, 1), key),
    }
    for name, call in calls.items():
        want = call(model) if "marked" not in name else calls["a key"](model)
        np.testing.assert_allclose(call(net), want, rtol=1e-10, err_msg=name)
    if wrapper is jaxpar.DataParallel:
        got = eqx.filter_grad(lambda net: (calls["rows"](net) ** 2).sum())(net).module
        close(got, eqx.filter_grad(lambda net: (calls["rows"](net) ** 2).sum())(model))
        assert isinstance(
            eqx.tree_at(lambda net: net.module.head.bias, net, jnp.ones(1)), jaxpar.DataParallel
        )


def test_an_ensemble_under_vmap():
    """Mapped modules are several ones, each a DataParallel of the complete batch."""
    stacked = eqx.filter_vmap(lambda key: eqx.nn.Linear(3, 1, use_bias=False, key=key, dtype=float))(
        jax.random.split(jax.random.key(0), 4)
    )
    batched = jaxpar.DataParallel(Batched(stacked.weight), [0, 1])
    x = RANDOM.randn(4, 6, 3)
    got = eqx.filter_vmap(lambda net, x: net(x))(batched, jnp.asarray(x))
    pieces = [rows - rows.mean(1, keepdims=True) for rows in (x[:, :3], x[:, 3:])]
    want = np.einsum("ebi,eoi->ebo", np.concatenate(pieces, 1), stacked.weight)
    np.testing.assert_allclose(got, want, rtol=1e-10)


class Batched(eqx.Module):
    weight: Any

    def __call__(self, x):
        return (x - x.mean(0)) @ self.weight.T  # of a replica's rows


WRAPPERS = {"DataParallel": data_parallel, "DistributedDataParallel": distributed}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_errors_name_the_wrapper(wrapper):
    """A leaf that no device can hold, and a deleted one, of an Equinox module."""
    model = eqx.nn.Linear(3, 1, key=jax.random.key(0))
    net = WRAPPERS[wrapper](model)
    net.module.weight.delete()
    with pytest.raises(DeletedError, match=rf"^{wrapper}: module\.weight"):
        jax.vmap(net)(jnp.ones((4, 3)))
    shapes = jax.eval_shape(lambda: model)
    with pytest.raises(UninitializedError, match=rf"^{wrapper}: .* module\.weight is a shape"):
        jax.vmap(WRAPPERS[wrapper](shapes))(jnp.ones((4, 3)))


class Text(linen.Module):
    @linen.compact
    def __call__(self, x):
        return x * self.variable("params", "w", lambda: "a text").value


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_leaf_that_no_device_holds(wrapper):
    with pytest.raises(LeafError, match=rf"^{wrapper}: .*w.* holds a str, which no device can hold"):
        WRAPPERS[wrapper](Text()).apply({"params": {"w": "a text"}}, jnp.ones((4, 3)))


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_hook_and_a_pure_step(kind):
    """The hook is given trees of the user's; `pure` and the step itself give the same."""

    def norms(update):
        return {
            "gradient": optax.tree.norm(update.gradients),
            "moved": optax.tree.norm(update.updates),
            "bias": getattr(update.net, "module", update.net).layers[1].layers[0].bias,
        }

    case, batch = CASES["Equinox"], batches_of()[0]
    step = jaxpar.train_step(kind(mlp()), TX, case.loss_fn, on_update=norms)
    _, params, _ = by_hand(case, kind, [batch], mlp(), None)
    trained, parts = trained_of(mlp())
    gradients = jax.grad(lambda t: objective(case, kind, *batch, None, parts)(t)[0])(trained)
    step(*batch)
    np.testing.assert_allclose(step.metrics["gradient"], optax.tree.norm(gradients), rtol=1e-10)
    np.testing.assert_allclose(step.metrics["bias"], params.layers[1].layers[0].bias, rtol=1e-10)

    two = [jaxpar.train_step(kind(mlp()), TX, case.loss_fn) for _ in range(2)]
    pure, carry = two[0].pure()
    for batch in batches_of()[:2]:
        carry, loss = jax.jit(pure)(carry, *batch)
        np.testing.assert_allclose(loss, two[1](*batch), rtol=1e-12)
    two[0].load(carry)
    close(two[0].state, two[1].state)


def test_weight_decay_and_leaves_that_are_not_trained():
    """optax transformations that read the parameters; integers stay."""
    params = {"w": jnp.full(3, 2.0), "n": jnp.arange(3)}
    tx = optax.chain(optax.add_decayed_weights(0.5), optax.sgd(0.1))
    step = jaxpar.train_step(
        data_parallel(lambda p, x: x * p["w"] * p["n"]), (params, tx), lambda net, x: net(x).sum()
    )
    step(jnp.ones((2, 3)))
    np.testing.assert_allclose(step.state.params["w"], 2 - 0.1 * (2 * np.arange(3) + 0.5 * 2))
    np.testing.assert_array_equal(step.state.params["n"], np.arange(3))


def test_texts_are_part_of_the_program():
    """Of a net that gets other ones between evaluations, and of an other structure."""
    evaluate = jaxpar.eval_step(lambda p, x: x * p["w"] if p["name"] == "one" else x + p["w"])
    for name, want in (("one", 6), ("two", 5), ("one", 6)):
        assert evaluate({"w": jnp.asarray(3.0), "name": name}, jnp.full(2, 2.0))[0] == want


def test_other_structures_between_evaluations():
    evaluate = jaxpar.eval_step(lambda p, x: x + sum(jax.tree.leaves(p)))
    for params, want in (({"w": jnp.ones(())}, 1), ({"v": jnp.ones(())}, 1), ([jnp.ones(())] * 2, 2)):
        assert evaluate(params, jnp.zeros(2))[0] == want


def test_other_buffers_than_before():
    state = jaxpar.FunctionState.create({"w": jnp.ones(())}, TX, buffers={"n": jnp.zeros(())})
    step = jaxpar.train_step(lambda p, b, x: (x * p["w"], {}), state, lambda net, x: net(x).mean())
    with pytest.raises(ValueError, match=r"the new buffers .*PyTreeDef"):
        step(jnp.ones(2))


class Scaled(eqx.Module):
    factor: float

    def __call__(self, params, x):
        return self.factor * x * params["w"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_callable_pytree_without_arrays_is_a_function(kind):
    state = {"w": jnp.ones(())}, optax.sgd(0.5)
    step = jaxpar.train_step(kind(Scaled(3.0)), state, lambda net, x: net(x).mean())
    assert step(jnp.ones(4)) == 3
    assert step.state.params["w"] == 1 - 0.5 * 3
    act = eqx.nn.Lambda(jnp.tanh)
    np.testing.assert_allclose(jaxpar.DataParallel(act, [0, 1])(X[0]), np.tanh(X[0]))


def test_leaves_that_are_not_trained_leave_precision_as_it_is():
    """The gradients of replicas are summed in float32, beside integers too."""
    x = RANDOM.randn(64, 16).astype(np.float32)

    def after(more):
        params = {"w": jnp.ones((16, 8), jnp.float32)} | more
        step = jaxpar.train_step(
            data_parallel(lambda p, x: jnp.tanh(x @ p["w"])),
            (params, optax.sgd(0.1)),
            lambda net, x: (net(x) ** 2).sum(),
            precision=jaxpar.Precision("bfloat16"),
        )
        step(x)
        return step.state.params["w"]

    np.testing.assert_array_equal(after({"n": jnp.arange(2)}), after({}))
