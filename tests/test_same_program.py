"""same_program: equal for two traces of one function, and for nothing else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar._parallel.same_program import same_program

X = jnp.ones((4, 3))
NAN = np.array([1.0, np.nan, 3.0])


def traced(function, *args):
    return jax.make_jaxpr(lambda *args: function(*args))(*(args or (X,)))


def scanned(step):
    return lambda x: jax.lax.scan(lambda carry, row: (step(carry + row), row), jnp.zeros(3), x)


ONES = {
    "operations": lambda x: jnp.tanh(x) * 0.5 + x,
    "a constant": lambda x: x + np.arange(3.0),
    "a constant that is not a number": lambda x: x + NAN,
    "a loop": scanned(jnp.tanh),
    "a branch": lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
    "a rule of its own": jax.nn.relu,
    "several results": lambda x: (x, x.sum(), jnp.sin(x)),
}


@pytest.mark.parametrize("what", ONES)
def test_two_traces_are_the_same(what):
    assert same_program(traced(ONES[what]), traced(ONES[what]))


OTHERS = {
    "another operation": (jnp.sin, jnp.cos),
    "one operation more": (jnp.sin, lambda x: jnp.cos(jnp.sin(x))),
    "one operation less": (lambda x: (jnp.sin(x), jnp.cos(x))[0] + 1, lambda x: jnp.sin(x)),
    "another number": (lambda x: x * 2.0, lambda x: x * 3.0),
    "another constant": (lambda x: x + np.arange(3.0), lambda x: x + np.arange(3.0)[::-1].copy()),
    "a number for what is none": (lambda x: x + NAN, lambda x: x + np.nan_to_num(NAN)),
    "arguments exchanged": (lambda x, y: x - y, lambda x, y: y - x),
    "another result": (lambda x: (jnp.sin(x), jnp.cos(x))[0], lambda x: (jnp.sin(x), jnp.cos(x))[1]),
    "another axis": (lambda x: x.sum(0), lambda x: x.sum(1)),
    "inside of a loop": (scanned(jnp.tanh), scanned(jnp.sin)),
    "inside of a branch": (
        lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
        lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.tanh, x),
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_programs_are_not(what):
    one, other = OTHERS[what]
    args = (X, X) if "arguments" in what else (X,)
    assert not same_program(traced(one, *args), traced(other, *args))
    assert not same_program(traced(other, *args), traced(one, *args))


@pytest.mark.parametrize("shape", [(4, 2), (4, 3, 1)])
def test_other_shapes_are_not(shape):
    assert not same_program(traced(lambda x: x * 2.0), traced(lambda x: x * 2.0, jnp.ones(shape)))
