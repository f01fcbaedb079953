"""jaxpar.optim.lbfgs against torch.optim.LBFGS.

L-BFGS divides by differences of gradients, so round-off grows from step to step, in torch as well: a
start that differs in the last bit ends elsewhere. So there are two laws. From torch's own state each
step is torch's to 1e-12; running freely, iterations and evaluations are counted equally, and the
distance is what torch's own is between starts that differ in the last bit.
"""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_numbers, named

from jaxpar import optim

torch = pytest.importorskip("torch")

STEPS = 50
TOLERANCE = 1e-12

random = np.random.RandomState(0)
A, b = random.randn(8, 6), random.randn(8)
START = {"v": random.randn(3), "w": random.randn(6)}


def least_squares(p, np):
    """A nonlinear one, with terms of fourth order that keep it from falling for ever."""
    fit = ((np.tanh(np.asarray(A) @ p["w"]) - np.asarray(b)) ** 2).sum()
    return fit + 0.1 * ((p["v"] ** 4).sum() + (p["w"] ** 4).sum()) + p["v"] @ p["w"][:3]


def rosenbrock(p, np):
    w = p["w"]
    return (100 * (w[1:] - w[:-1] ** 2) ** 2 + (1 - w[:-1]) ** 2).sum() + ((p["v"] - 1) ** 2).sum()


# The first stops where the gradients' differences, by which it divides, begin to be round-off.
CASES = [
    (least_squares, {"max_iter": 2, "tolerance_grad": 1e-3}),
    (least_squares, {"lr": 0.1, "max_iter": 3, "history_size": 3}),
    (least_squares, {"max_iter": 3, "line_search_fn": "strong_wolfe"}),
    (rosenbrock, {"lr": 1e-3, "max_iter": 3}),
    (rosenbrock, {"max_iter": 2, "line_search_fn": "strong_wolfe", "history_size": 2}),
    (rosenbrock, {"lr": 0.3, "max_iter": 3, "max_eval": 3, "line_search_fn": "strong_wolfe"}),
    (rosenbrock, {"max_iter": 4, "tolerance_change": 1e-2, "line_search_fn": "strong_wolfe"}),
]
LONG = [
    (least_squares, {}),
    (least_squares, {"line_search_fn": "strong_wolfe"}),
    (rosenbrock, {"lr": 1e-3}),
    (rosenbrock, {"line_search_fn": "strong_wolfe", "history_size": 5}),
]


class Theirs:
    def __init__(self, loss, options, start):
        self.params = {k: torch.tensor(x, requires_grad=True) for k, x in start.items()}
        self.optimizer = torch.optim.LBFGS(self.params.values(), **options)
        self.loss = loss

    def step(self):
        def closure():
            self.optimizer.zero_grad()
            value = self.loss(self.params, torch)
            value.backward()
            return value

        self.optimizer.step(closure)

    def arrays(self):
        return {k: p.detach().numpy().copy() for k, p in self.params.items()}

    @property
    def state(self):
        return self.optimizer.state[self.params["v"]]

    def counts(self):
        return self.state["n_iter"], self.state["func_evals"]


def program(loss, options):
    tx = optim.lbfgs(**options)

    def value_fn(params):
        return loss(params, jnp)

    @jax.jit
    def step(params, state):
        value, grads = jax.value_and_grad(value_fn)(params)
        updates, state = tx.update(grads, state, params, value=value, value_fn=value_fn)
        return optax.apply_updates(params, updates), state

    return tx, step


def resync(fresh, theirs):
    """Our state with torch's history."""
    if "d" not in theirs:
        return fresh
    inner = fresh.inner_state
    size, n = inner.old_dirs.shape
    pairs = len(theirs["old_dirs"])
    rows = {"old_dirs": np.zeros((size, n)), "old_stps": np.zeros((size, n)), "ro": np.zeros(size)}
    for key, array in rows.items():
        for i, value in enumerate(theirs[key]):
            array[i] = value.numpy()
    scalars = {key: jnp.asarray(float(theirs[key])) for key in ("t", "H_diag")}
    vectors = {key: jnp.asarray(theirs[key].numpy().copy()) for key in ("d", "prev_flat_grad")}
    counts = {key: jnp.asarray(theirs[key]) for key in ("n_iter", "func_evals")}
    arrays = {key: jnp.asarray(array) for key, array in rows.items()}
    new = inner._replace(pairs=jnp.asarray(pairs), **counts, **scalars, **vectors, **arrays)
    return fresh._replace(inner_state=new)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize(("loss", "options"), CASES, ids=named)
def test_each_step_from_torchs_state(loss, options):
    theirs = Theirs(loss, options, START)
    tx, step = program(loss, options)
    for _ in range(STEPS):
        params = {k: jnp.asarray(x) for k, x in theirs.arrays().items()}
        state = resync(tx.init(params), theirs.state)
        theirs.step()
        got, state = step(params, state)
        assert (int(state.inner_state.n_iter), int(state.inner_state.func_evals)) == theirs.counts()
        for name, want in theirs.arrays().items():
            assert_equal_numbers(name, got[name], want, TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "options"), LONG, ids=named)
def test_running_freely_it_strays_as_torch_does(loss, options):
    theirs = Theirs(loss, options, START)
    nudged = [
        Theirs(loss, options, {k: x * (1 + s * 2.0**-52) for k, x in START.items()}) for s in (1, -1, 2, -2)
    ]
    tx, step = program(loss, options)
    params = {k: jnp.asarray(x) for k, x in START.items()}
    state, spread = tx.init(params), TOLERANCE
    for _ in range(8):
        params, state = step(params, state)
        theirs.step()
        want = theirs.arrays()
        for other in nudged:
            other.step()
            spread = max([spread, *(np.abs(x - want[k]).max() for k, x in other.arrays().items())])
        if all(other.counts() == theirs.counts() for other in nudged):
            assert (int(state.inner_state.n_iter), int(state.inner_state.func_evals)) == theirs.counts()
        assert max(np.abs(params[k] - want[k]).max() for k in want) <= 10 * spread


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("loss", "options"), CASES, ids=named)
def test_maximize(loss, options):
    """To ascend is to descend the negative; torch has it from 2.15."""

    def negative(p, np):
        return -loss(p, np)

    params = {k: jnp.asarray(x) for k, x in START.items()}
    (up, climb), (down, descend) = program(negative, options | {"maximize": True}), program(loss, options)
    (a, up_state), (b, down_state) = (params, up.init(params)), (params, down.init(params))
    for _ in range(3):
        (a, up_state), (b, down_state) = climb(a, up_state), descend(b, down_state)
        for name in params:
            assert_equal_numbers(name, a[name], b[name], TOLERANCE)
    if "maximize" in inspect.signature(torch.optim.LBFGS).parameters:
        theirs = Theirs(negative, options | {"maximize": True}, START)
        theirs.step()
        first, _ = climb(params, up.init(params))
        for name, want in theirs.arrays().items():
            assert_equal_numbers(name, first[name], want, TOLERANCE)


@pytest.mark.parametrize("fault", [{"lr": 0.100001}, {"max_iter": 4}, {"history_size": 1}, {"max_eval": 2}])
def test_a_planted_fault_is_found(fault):
    options = {"lr": 0.1, "max_iter": 3, "history_size": 3}
    theirs = Theirs(least_squares, options, START)
    tx, step = program(least_squares, options | fault)
    params = {k: jnp.asarray(x) for k, x in START.items()}
    state = tx.init(params)
    for _ in range(3):
        theirs.step()
        params, state = step(params, state)
    with pytest.raises(AssertionError, match="relative difference"):
        assert_equal_numbers("w", params["w"], theirs.arrays()["w"], TOLERANCE)


def test_bad_input():
    with pytest.raises(ValueError, match="Invalid learning rate: -1"):
        optim.lbfgs(lr=-1)
    with pytest.raises(RuntimeError, match="only 'strong_wolfe' is supported"):
        optim.lbfgs(line_search_fn="armijo")
    with pytest.raises(TypeError, match=r"must have the same type, but have \['float32', 'float64'\]"):
        optim.lbfgs().init([jnp.zeros(2, jnp.float32), jnp.zeros(2)])
    tx = optim.lbfgs()
    state = tx.init(jnp.zeros(2))
    with pytest.raises(
        ValueError, match=r"pass the loss: tx.update\(grads, state, params, value_fn=loss_fn\)"
    ):
        tx.update(jnp.ones(2), state, jnp.zeros(2))
    with pytest.raises(ValueError, match="LBFGS doesn't support per-parameter options"):
        optim.param_groups(optim.lbfgs, [{"params": ...}])
    with pytest.raises(NotImplementedError, match="state_to_torch: the history of lbfgs"):
        optim.state_to_torch(state, {"param_groups": []})
    with pytest.raises(ValueError, match=r"no state of an optimizer of jaxpar.optim"):
        optim.state_to_torch(optax.adam(0.1).init(jnp.zeros(2)), {"param_groups": []})
