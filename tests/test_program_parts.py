"""Ranks that run other code are stopped in their first step, on all ranks, before a weight is wrong."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from processes import outputs, ranks

from jaxpar._training.divergence_guard import program_parts

# --------------------------------------------------------------------------------- what a program is


def parts(function, *args):
    return program_parts(jax.jit(function).trace(*args))


X = jnp.ones((4, 3))
ONE, TWO = np.ones(3), np.full(3, 2.0)
KEYS = jax.random.key(0), jax.random.key(1)

OTHERS = {
    "another operation": (jnp.tanh, jax.nn.relu, "how often the step does"),
    "one more of them": (jnp.tanh, lambda x: jnp.tanh(jnp.tanh(x)), "how often the step does tanh"),
    "inside of a loop": (
        lambda x: jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y), x),
        lambda x: jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y), x),
        "how often the step does sin",
    ),
    "another number": (lambda x: x * 0.5, lambda x: x * 0.25, "the numbers in the step"),
    "another array": (lambda x: x + ONE, lambda x: x + TWO, "the arrays that the step closes over"),
    "another key": (
        lambda x: x + jax.random.normal(KEYS[0], 3),
        lambda x: x + jax.random.normal(KEYS[1], 3),
        "the arrays that the step closes over",
    ),
    "another order": (
        lambda x: jnp.sin(jnp.cos(x)),
        lambda x: jnp.cos(jnp.sin(x)),
        "the program of the step",
    ),
    "another axis": (lambda x: x.sum(0)[:3], lambda x: x.sum(1)[:3], "the program of the step"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_programs_differ_in_words(what):
    one, two, words = OTHERS[what]
    ours, theirs = parts(one, X), parts(two, X)
    differing = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    assert words in " ".join(differing)


@pytest.mark.parametrize("what", OTHERS)
def test_the_same_program_is_the_same(what):
    function, *_ = OTHERS[what]
    assert parts(lambda x: function(x), X) == parts(lambda x: function(x), X)


def test_other_shapes_differ():
    assert parts(jnp.tanh, X)["what goes into the step"] != parts(jnp.tanh, X[:2])["what goes into the step"]


# ------------------------------------------------------------------------------------------- two ranks

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx
import jaxpar, jaxpar.distributed as dist
from jaxpar import errors

dist.init_process_group(timeout=60)
r, OTHER = dist.get_rank(), CASE


class Net(nnx.Module):
    def __init__(self):
        self.a, self.b = nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 2, rngs=nnx.Rngs(1))

    def __call__(self, x):
        y = self.a(x)
        return self.b(jax.nn.relu(y) if r and OTHER == "an activation" else jnp.tanh(y))


def loss_fn(net, x, y):
    scale = 0.5000001 if r and OTHER == "a constant" else 0.5
    error = net(x) - y
    return scale * (jnp.abs(error) if r and OTHER == "a loss" else error**2).mean()


if r and OTHER == "random numbers":
    jax.config.update("jax_default_prng_impl", "rbg")
net = jaxpar.DistributedDataParallel(Net())
optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
step = jaxpar.train_step(net, optimizer, loss_fn)
before = [np.asarray(x).copy() for x in jax.tree.leaves(nnx.state(net))]
x, y = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
try:
    for _ in range(3):
        step(x, y)
    if OTHER == "nothing":
        other = jaxpar.DistributedDataParallel(Net())
        other.value_and_grad(loss_fn)(x, y)
    print("TRAINED")
except errors.DivergenceError as error:
    after = [np.asarray(x) for x in jax.tree.leaves(nnx.state(net))]
    same = all((a == b).all() for a, b in zip(after, before, strict=True))
    print("STOPPED", "unchanged" if same else "CHANGED", error)
"""

SAID = {
    "an activation": "how often the step does",
    "a loss": "how often the step does",
    "a constant": "the numbers in the step",
    "random numbers": "the random implementation: rank 0 has threefry2x32, rank 1 has rbg",
}


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("other", SAID)
def test_a_rank_with_other_code_is_stopped_before_its_first_update(other):
    for out in outputs(ranks(2, SCRIPT.replace("CASE", repr(other)), timeout=60)):
        assert "STOPPED unchanged step 0 of the program of DistributedDataParallel" in out
        assert SAID[other] in out
        assert "as nnx.cond or jax.lax.cond" in out
        assert "TRAINED" not in out


TWENTY = """
import jax.numpy as jnp, numpy as np, optax
from flax import nnx
import jaxpar, jaxpar.distributed as dist
from jaxpar import errors

dist.init_process_group(timeout=60)
r = dist.get_rank()


class Net(nnx.Module):
    def __init__(self):
        self.a = nnx.Linear(3, 4, rngs=nnx.Rngs(0))

    def __call__(self, x):
        y = self.a(x)
        for constant in constants:  # of no module's structure
            y = jnp.tanh(y * constant)
        return y


def loss_fn(net, x):
    return (net(x) ** 2).mean()


stopped = 0
for which in range(20):
    constants = [1 + 0.125 * i for i in range(20)]
    constants[which] += 1e-6 * r
    net = jaxpar.DistributedDataParallel(Net())
    step = jaxpar.train_step(net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param), loss_fn)
    try:
        step(np.ones((4, 3), np.float32))
    except errors.DivergenceError as error:
        stopped += "the numbers in the step" in str(error)
print("STOPPED", stopped)
"""


@pytest.mark.long
@pytest.mark.slow
def test_one_changed_constant_in_twenty_forwards_is_stopped_in_twenty_first_steps():
    for out in outputs(ranks(2, TWENTY, timeout=100)):
        assert "STOPPED 20" in out


@pytest.mark.long
@pytest.mark.slow
def test_ranks_with_the_same_code_train():
    for out in outputs(ranks(2, SCRIPT.replace("CASE", "'nothing'"), timeout=60)):
        assert "TRAINED" in out
