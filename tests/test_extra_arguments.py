"""Optimizers that need the loss get it in a step, and train as in optax's own loop, to 1e-10."""

from __future__ import annotations

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import jaxpar

RANDOM = np.random.RandomState(0)
X, Y = RANDOM.randn(10, 3), RANDOM.randn(10, 1)
ROWS = {1: [(0, 10)], 4: [(0, 3), (3, 6), (6, 9), (9, 10)]}  # each replica's, as torch's chunk cuts them
STEPS = 5

TRANSFORMATIONS = {
    "plateau": lambda: optax.chain(optax.sgd(0.5), optax.contrib.reduce_on_plateau(patience=1, rtol=0.2)),
    "polyak": lambda: optax.polyak_sgd(max_learning_rate=0.3),
    "backtracking": lambda: optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(8)),
    "lbfgs": lambda: optax.lbfgs(linesearch=optax.scale_by_zoom_linesearch(4)),
    "torch's lbfgs": lambda: jaxpar.optim.lbfgs(max_iter=3, line_search_fn="strong_wolfe"),
    "none": lambda: optax.GradientTransformation(*optax.sgd(0.1)),  # whose update takes no more arguments
}


def plain(module):
    return module


def data_parallel(module):
    return jaxpar.DataParallel(module, [0, 1, 2, 3])


def distributed(module):
    return jaxpar.DistributedDataParallel(module, [0, 1, 2, 3])


KINDS = [plain, data_parallel, distributed]


def parameters():
    random = np.random.RandomState(1)
    return {
        "a": {"bias": jnp.zeros(5), "kernel": jnp.asarray(random.randn(3, 5) / 2)},
        "b": {"bias": jnp.zeros(1), "kernel": jnp.asarray(random.randn(5, 1) / 2)},
    }


class Net(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.a = nnx.Linear(3, 5, rngs=rngs, param_dtype=jnp.float64)
        self.b = nnx.Linear(5, 1, rngs=rngs, param_dtype=jnp.float64)
        nnx.update(self, parameters())

    def __call__(self, x):
        return self.b(jnp.tanh(self.a(x)))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.Dense(5, param_dtype=jnp.float64, name="a")(x)
        return linen.Dense(1, param_dtype=jnp.float64, name="b")(jnp.tanh(x))


def mse(net, x, y):
    return ((net(x) - y) ** 2).mean()


def loss_by_hand(rows, x=X, y=Y):
    """The mean over the replicas of each one's loss, of a tree of parameters."""

    def of(p, x, y):
        hidden = jnp.tanh(x @ p["a"]["kernel"] + p["a"]["bias"])
        return ((hidden @ p["b"]["kernel"] + p["b"]["bias"] - y) ** 2).mean()

    return lambda p: sum(of(p, x[i:j], y[i:j]) for i, j in rows) / len(rows)


def by_hand(tx, loss, steps=STEPS):
    """optax's own loop, as its pages write it."""
    p = parameters()
    state, losses = tx.init(p), []
    tx = optax.with_extra_args_support(tx)
    for _ in range(steps):
        value, gradients = jax.value_and_grad(loss)(p)
        updates, state = tx.update(gradients, state, p, value=value, grad=gradients, value_fn=loss)
        p = optax.apply_updates(p, updates)
        losses.append(value)
    return losses, p


def nnx_step(kind, tx, loss_fn=mse, **options):
    net = kind(Net())
    step = jaxpar.train_step(net, nnx.Optimizer(net, tx, wrt=nnx.Param), loss_fn, **options)
    return step, lambda: nnx.to_pure_dict(nnx.state(getattr(net, "module", net), nnx.Param))


def linen_step(kind, tx, loss_fn=mse, **options):
    net = kind(LinenNet())
    bare = kind is not data_parallel
    params = parameters() if bare else {"module": parameters()}
    state = TrainState.create(apply_fn=net.apply, params=params, tx=tx)
    step = jaxpar.train_step(net, state, loss_fn, **options)
    return step, lambda: step.state.params if bare else step.state.params["module"]


def check(step, params, expected, batch=(X, Y)):
    losses = [step(*batch) for _ in range(STEPS)]
    for got, want in zip(jax.tree.leaves((losses, params())), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


CASES = [
    pytest.param(
        make,
        kind,
        name,
        id=f"{make.__name__} {kind.__name__} {name}",
        marks=[pytest.mark.slow] if "lbfgs" in name and (make, kind) != (nnx_step, distributed) else [],
    )
    for make in (nnx_step, linen_step)
    for kind in KINDS
    for name in TRANSFORMATIONS
]


@pytest.mark.full
@pytest.mark.sampled(7)
@pytest.mark.parametrize(("make", "kind", "name"), CASES)
def test_an_optimizer_gets_the_loss(make, kind, name):
    expected = by_hand(TRANSFORMATIONS[name](), loss_by_hand(ROWS[4 if kind is distributed else 1]))
    check(*make(kind, TRANSFORMATIONS[name]()), expected)


@pytest.mark.full
@pytest.mark.parametrize("kind", [plain, distributed], ids=lambda kind: kind.__name__)
def test_a_planted_fault_is_found(kind):
    expected = by_hand(TRANSFORMATIONS["polyak"](), loss_by_hand(ROWS[4 if kind is distributed else 1]))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(*nnx_step(kind, TRANSFORMATIONS["polyak"](), lambda *a: mse(*a) * (1 + 1e-8)), expected)


@pytest.mark.full
def test_a_loss_scale_is_taken_off():
    precision = jaxpar.Precision("float64", loss_scale=1024.0)
    expected = by_hand(TRANSFORMATIONS["lbfgs"](), loss_by_hand(ROWS[4]))  # uses gradients elsewhere, too
    check(*nnx_step(distributed, TRANSFORMATIONS["lbfgs"](), precision=precision), expected)


def test_what_is_trained_may_be_a_part():
    def loss_fn(net, x, y):
        return mse(net, x, y)

    net = Net()
    wrt = nnx.All(nnx.Param, nnx.PathContains("b"))
    step = jaxpar.train_step(net, nnx.Optimizer(net, TRANSFORMATIONS["backtracking"](), wrt=wrt), loss_fn)
    losses = [float(step(X, Y)) for _ in range(STEPS)]
    fixed, loss = parameters()["a"], loss_by_hand(ROWS[1])
    p, tx = {"b": parameters()["b"]}, TRANSFORMATIONS["backtracking"]()
    state, expected = tx.init(p), []
    for _ in range(STEPS):

        def of_part(p):
            return loss({"a": fixed, **p})

        value, gradients = jax.value_and_grad(of_part)(p)
        updates, state = tx.update(gradients, state, p, value=value, grad=gradients, value_fn=of_part)
        p = optax.apply_updates(p, updates)
        expected.append(float(value))
    np.testing.assert_allclose(losses, expected, rtol=1e-10)


BATCHES = [(X[:4], Y[:4]), (X[4:8], Y[4:8])]


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_accumulated_loss_is_the_mean(kind):
    rows = [(i, i + 1) for i in range(4)] if kind is distributed else [(0, 4)]
    losses = [loss_by_hand(rows, *batch) for batch in BATCHES]
    _, expected = by_hand(TRANSFORMATIONS["polyak"](), lambda p: (losses[0](p) + losses[1](p)) / 2)
    step, params = nnx_step(kind, TRANSFORMATIONS["polyak"](), accumulate=2)
    for k in range(STEPS):
        if k == 3:  # in the middle of an accumulation, of which the restored step is the rest
            step(*BATCHES[0])
            saved = step.state_dict()
            assert len(saved["losses"]) == 1
            step.load_state_dict(saved)
            step(*BATCHES[1])
            continue
        for batch in BATCHES:
            step(*batch)
    for got, want in zip(jax.tree.leaves(params()), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)
    assert step.lower(*BATCHES[0]).compile() is not None


def test_a_line_search_cannot_accumulate():
    with pytest.raises(ValueError, match="accumulate=2 the rows of earlier calls are gone"):
        nnx_step(plain, TRANSFORMATIONS["backtracking"](), accumulate=2)


@pytest.mark.full
def test_losses_of_several_networks_are_each_ones_own():
    def both(nets, x, y):
        return mse(nets[0], x, y), 3 * mse(nets[1], x, y)

    nets = Net(), Net()
    optimizers = tuple(nnx.Optimizer(net, TRANSFORMATIONS["backtracking"](), wrt=nnx.Param) for net in nets)
    step = jaxpar.train_step(nets, optimizers, both)
    losses = [step(X, Y) for _ in range(STEPS)]
    for i, factor in enumerate((1, 3)):
        loss = loss_by_hand(ROWS[1])
        expected, _ = by_hand(TRANSFORMATIONS["backtracking"](), lambda p, loss=loss, f=factor: f * loss(p))
        np.testing.assert_allclose([pair[i] for pair in losses], expected, rtol=1e-10)
