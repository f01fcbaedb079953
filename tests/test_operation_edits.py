"""An edit of an operation is among those that its cause's text suggests, and changes nothing else."""

from __future__ import annotations

import ast

import pytest

from jaxpar.parity.contract.plain_edits import plain_edits
from jaxpar.parity.contract.source import Code

CASES = {
    "operator": ("the operands are added (they are multiplied)", "x * gate(y)", "x + gate(y)"),
    "operator of a sum": ("the operands are multiplied (they are added)", "2 * (x + y)", "2 * (x * y)"),
    "function of an operator": (
        "the operands are subtracted (they are divided)",
        "jnp.divide(x, y)",
        "jnp.subtract(x, y)",
    ),
    "reduction": (
        "mean (it acts as sum)",
        "jnp.sum(x, axis=(1, 2), keepdims=True)",
        "jnp.mean(x, axis=(1, 2), keepdims=True)",
    ),
    "largest": ("amax (it acts as mean)", "h.mean(1)", "h.max(1)"),
    "index": ("[:, 0] (it acts as [:, -1])", "h[:, -1]", "h[:, 0]"),
    "range": ("[:, 1:] (it acts as [:, 0:])", "self.head(tokens[:, 0:])", "self.head(tokens[:, 1:])"),
    "one index": ("[0] (it acts as [1])", "states[1]", "states[0]"),
    "padding": (
        "padding=1 (all of it is before the input)",
        "conv(x, w, padding=((2, 0),))",
        "conv(x, w, padding=[(1, 1)])",
    ),
    "padding by name": (
        "padding=(1, 2) (all of it is before the input)",
        "nn.Conv(8, (3, 5), padding='CAUSAL')(x)",
        "nn.Conv(8, (3, 5), padding=[(1, 1), (2, 2)])(x)",
    ),
    "padding of an array": (
        "padding=2 (all of it is after the input)",
        "jnp.pad(x, ((0, 0), (0, 4), (0, 0)))",
        "jnp.pad(x, ((0, 0), (2, 2), (0, 0)))",
    ),
    "divisor": (
        "the variance divides by n (it divides by n - 1)",
        "x / jnp.sqrt(x.var(-1, ddof=1) + 1e-5)",
        "x / jnp.sqrt(x.var(-1, ddof=0) + 1e-5)",
    ),
    "epsilon": (
        "epsilon is added to the variance (it is added to the deviation)",
        "x / (std + 1e-5)",
        "x / ((std ** 2 + 1e-5) ** 0.5)",
    ),
    "epsilon and divisor": (
        "epsilon is added to the variance, of n (it is added to the deviation, of n - 1)",
        "(x - mean) / (root(x, jnp.var(x, ddof=1)) + (std + 1e-5))",
        "(x - mean) / (root(x, jnp.var(x, ddof=0)) + ((std ** 2 + 1e-5) ** 0.5))",
    ),
    "gate": (
        "the forget gate has no bias of its own (1 is added to it)",
        "jax.nn.sigmoid(f + 1.0) * c",
        "jax.nn.sigmoid(f) * c",
    ),
}


def function(expression):
    return f"def forward(x):\n    return {expression}\n"


@pytest.mark.parametrize("name", CASES, ids=lambda name: name.replace(" ", "_"))
def test_the_edit_is_proposed(name):
    text, wrong, right = CASES[name]
    edited = list(plain_edits(Code(function(wrong)), text))
    expected = ast.dump(ast.parse(function(right)))
    assert expected in [ast.dump(ast.parse(source)) for source in edited], edited
    assert function(wrong) not in edited


def test_a_text_without_a_place_proposes_nothing():
    for text, *_ in CASES.values():
        assert list(plain_edits(Code(function("x")), text)) == []
