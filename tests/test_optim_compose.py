"""Optimizers inside of what optax, Flax and JAX put around them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparing import assert_equal_numbers
from flax import nnx

from jaxpar import optim
from jaxpar.optim import lr_scheduler

TOLERANCE = 1e-12
WORDS = {
    "sgd": {"momentum": 0.9, "dampening": 0.5},
    "adam": {"amsgrad": True, "weight_decay": 0.1},
    "adamw": {},
    "rmsprop": {"momentum": 0.9, "centered": True},
    "adagrad": {"lr_decay": 0.1},
    "adadelta": {},
    "adamax": {},
    "nadam": {"weight_decay": 0.1, "decoupled_weight_decay": True},
    "radam": {},
    "rprop": {},
    "asgd": {"t0": 3},
    "adafactor": {"weight_decay": 0.1},
}
PARAMS = {"w": np.random.RandomState(0).randn(4, 3), "b": np.random.RandomState(1).randn(3)}
STEPS = 8


def many(tx, params=PARAMS):
    """All steps in one compiled loop."""

    def step(carry, t):
        params, state = carry
        grads = jax.tree.map(lambda p: 0.3 * p + jnp.cos(t + p), params)
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    def loop(params):
        (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), jnp.arange(STEPS))
        return params

    return jax.jit(loop)(jax.tree.map(jnp.asarray, params))


def same(got, want):
    for name in want:
        assert_equal_numbers(name, np.asarray(got[name]), np.asarray(want[name]), TOLERANCE)


@pytest.mark.parametrize("word", WORDS)
def test_injected_hyperparameters_are_the_same_numbers(word):
    make = getattr(optim, word)
    same(many(optax.inject_hyperparams(make)(lr=0.05, **WORDS[word])), many(make(lr=0.05, **WORDS[word])))


def test_a_rate_is_a_number_an_array_or_a_schedule():
    want = many(optim.adamw(lr=0.05))
    same(many(optim.adamw(lr=jnp.asarray(0.05))), want)
    same(many(optim.adamw(lr=lr_scheduler.lambda_lr(0.05, lambda t: 1.0))), want)
    same(many(optim.adamw(lr=optax.constant_schedule(0.05))), want)


def test_optax_schedules_are_exact_too():
    """They compute in the type of the counter: float64 behind ours, float32 behind optax's int32."""
    want = many(optim.sgd(lr=lr_scheduler.exponential_lr(0.05, 0.9)))
    schedule = optax.exponential_decay(0.05, 1, 0.9)
    same(many(optim.sgd(lr=schedule)), want)


@pytest.mark.parametrize("word", WORDS)
def test_a_chain_with_clipping_donated(word):
    tx = optax.chain(optim.clip_grad_norm(1.0), getattr(optim, word)(lr=0.05, **WORDS[word]))

    def step(params, state):
        updates, state = tx.update(params, state, params)
        return optax.apply_updates(params, updates), state

    kept = jax.jit(step)
    given = jax.jit(step, donate_argnums=(0, 1))
    params = jax.tree.map(jnp.asarray, PARAMS)
    one, two = (params, tx.init(params)), (jax.tree.map(jnp.copy, params), tx.init(params))
    for _ in range(3):
        one, old, two = kept(*one), two, given(*two)
    same(two[0], one[0])
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old) if leaf.ndim)


@pytest.mark.full
def test_an_nnx_optimizer():
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
    start = {"kernel": model.kernel[...], "bias": model.bias[...]}
    x = np.random.RandomState(0).randn(5, 3)
    tx = optax.chain(optim.clip_grad_value(0.1), optim.adam(lr=0.05, amsgrad=True))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        optimizer.update(model, nnx.grad(lambda model: (model(x) ** 2).mean())(model))

    params, state = start, tx.init(start)
    for _ in range(3):
        grads = jax.grad(lambda p: ((x @ p["kernel"] + p["bias"]) ** 2).mean())(params)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        step(model, optimizer)
    same({"kernel": model.kernel[...], "bias": model.bias[...]}, params)


def test_vmapped_runs_with_their_own_rates():
    rates = jnp.asarray([0.01, 0.1])
    together = jax.vmap(lambda lr: many(optim.adam(lr=lr)))(rates)
    for i, lr in enumerate(rates):
        same(jax.tree.map(lambda x, i=i: x[i], together), many(optim.adam(lr=float(lr))))
