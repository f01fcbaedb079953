"""A Python number and an array without axes stand for each other in a checkpoint; a TrainState restarts."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

import jaxpar
from jaxpar import Checkpointer
from jaxpar.errors import CheckpointError

X = np.random.RandomState(0).randn(6, 8, 3).astype(np.float32)


def restored(directory, saved, live, **options):
    with Checkpointer(directory) as checkpointer:
        checkpointer.save(0, tree={"n": saved})
    return Checkpointer(directory).restore(tree={"n": live}, **options).trees["tree"]["n"]


ALIKE = {
    "an array for a number": (jnp.int32(7), 0, jnp.int32(7)),
    "a number for an array": (7, jnp.int32(0), jnp.int32(7)),
    "a shape for a number": (7, jax.ShapeDtypeStruct((), jnp.int16), jnp.int16(7)),
    "of NumPy": (7, np.uint8(0)[...], np.asarray(7, np.uint8)),
    "float": (jnp.float32(0.1), 1.0, jnp.float32(0.1)),
    "float back": (0.1, jnp.float64(0), jnp.float64(0.1)),
    "half": (0.5, jnp.bfloat16(0), jnp.bfloat16(0.5)),
    "bool": (jnp.bool_(True), False, jnp.bool_(True)),
    "two numbers": (7, 0, 7),
}


@pytest.mark.parametrize("what", ALIKE)
def test_the_value_is_the_saved_one(what, tmp_path):
    saved, live, want = ALIKE[what]
    got = restored(tmp_path, saved, live)
    assert type(got) is type(want)
    np.testing.assert_array_equal(got, want, strict=True)


OTHERS = {
    "axes": (jnp.zeros(1, jnp.int32), 0, r"\['n'\] is the int 0 here and an array of int32\[1\] in"),
    "kind": (jnp.float32(1), 0, r"the int 0 here and an array of float32\[\]"),
    "bool is no int": (True, jnp.int32(0), r"an array of int32\[\] here and the bool True"),
    "too large": (300, jnp.int8(0), r"an array of int8\[\] here and the int 300"),
    "more digits": (0.1, jnp.float32(0), r"an array of float32\[\] here and the float 0\.1"),
    "text": ("7", jnp.int32(0), r"an array of int32\[\] here and text or None"),
    "key": (1, jax.random.key(0), r"an array of key<fry>\[\] here and the int 1"),
}


@pytest.mark.parametrize("strict_dtype", [True, False])
@pytest.mark.parametrize("what", OTHERS)
def test_what_is_no_such_number_is_refused(what, strict_dtype, tmp_path):
    saved, live, message = OTHERS[what]
    with pytest.raises(CheckpointError, match=message):
        restored(tmp_path, saved, live, strict_dtype=strict_dtype)


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_64_bits_are_exact_where_jax_has_32(dtype, tmp_path):
    large = dtype(2**40 + 1)[...]
    with jax.enable_x64(False):
        got = restored(tmp_path, large, type(large.item())(0))
    assert got == large.item()
    assert type(got) is type(large.item())


def fresh(net):
    params = net.init(jax.random.key(0), X[0])["params"]
    return TrainState.create(apply_fn=net.apply, params=params, tx=optax.adam(0.1))


def steps_of(kind, state, batches):
    net = kind(nn.Dense(1))
    step = jaxpar.train_step(net, fresh(net) if state is None else state, lambda net, x: (net(x) ** 2).mean())
    for x in batches:
        step(x)
    return step.state


def by_hand(kind, state, batches):
    net = kind(nn.Dense(1))
    state = fresh(net) if state is None else state

    @jax.jit
    def update(state, x):
        return state.apply_gradients(
            grads=jax.grad(lambda p: (net.apply({"params": p}, x) ** 2).mean())(state.params)
        )

    for x in batches:
        state = update(state, x)
    return state


KINDS = {
    "plain": lambda net: net,
    "DataParallel": lambda net: jaxpar.DataParallel(net, [0, 1]),
    "DistributedDataParallel": lambda net: jaxpar.DistributedDataParallel(net, [0, 1]),
}


@pytest.mark.parametrize(
    ("kind", "run"),
    [(kind, steps_of) for kind in KINDS] + [("plain", by_hand), ("DataParallel", by_hand)],
)
def test_a_train_state_restarts_bit_for_bit(kind, run, tmp_path):
    wrap = KINDS[kind]
    want = run(wrap, None, X)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(2, state=run(wrap, None, X[:3]))
    template = fresh(wrap(nn.Dense(1)))
    assert type(template.step) is int
    state = Checkpointer(tmp_path).restore(state=template).trees["state"]
    assert (state.step.dtype, int(state.step)) == (want.step.dtype, 3)
    got = run(wrap, state, X[3:])
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
    assert int(got.step) == 6


def test_a_fresh_state_goes_into_a_stepped_one(tmp_path):
    wrap = KINDS["plain"]
    first = fresh(wrap(nn.Dense(1)))
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, state=first)
    stepped = steps_of(wrap, None, X[:2])
    state = Checkpointer(tmp_path).restore(state=stepped).trees["state"]
    assert (state.step.dtype, int(state.step)) == (stepped.step.dtype, 0)
    jax.tree.map(np.testing.assert_array_equal, state.params, first.params)
