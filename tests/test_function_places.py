"""Where functions differ that call no layers: by torch's arrays that no line of JAX's code computes."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar import parity
from jaxpar.parity._divergence import values

torch = pytest.importorskip("torch")
tn = torch.nn

X = np.random.RandomState(0).randn(2, 5, 6)


class Block(tn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.up = tn.Linear(6, 18), tn.Linear(6, 6), tn.Linear(6, 6)

    def forward(self, x):
        x = x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.mT / 1.7).softmax(-1)
        x = x + self.out(weights @ v)
        return x + torch.nn.functional.silu(self.up(x))


class Reference(tn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = tn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def linear(p, x):
    return x @ p["weight"].T + p["bias"]


def block(p, x, epsilon=1e-6, scale=1.7, activation=jax.nn.silu, residual=1.0):
    x = x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + epsilon)
    q, k, v = jnp.split(linear(p["qkv"], x), 3, -1)
    weights = jax.nn.softmax((q / scale) @ k.mT)  # the queries are scaled, as torch's scores are
    x = residual * x + linear(p["out"], weights @ v)
    return x + activation(linear(p["up"], x))


def by_loop(p, x, **mistake):
    for layer in p["blocks"]:
        x = block(layer, x, **mistake)
    return x


def by_jit(p, x, **mistake):
    step = jax.jit(lambda layer, x: block(layer, x, **mistake))
    for layer in p["blocks"]:
        x = step(layer, x)
    return x


def by_scan(p, x, **mistake):
    layers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *p["blocks"])
    return jax.lax.scan(lambda x, layer: (block(layer, x, **mistake), None), x, layers)[0]


def tree(module):
    arrays = {name: jnp.asarray(x.detach().numpy()) for name, x in module.named_parameters(recurse=False)}
    children = {name: tree(child) for name, child in module.named_children()}
    return [*children.values()] if isinstance(module, tn.ModuleList) else arrays | children


def compared(model, **mistake):
    torch.manual_seed(0)
    reference = Reference()
    return parity.compare(reference, (lambda p, x: model(p, x, **mistake), tree(reference)), X)


def line(function, text):
    lines, first = inspect.getsourcelines(function)
    return f"test_function_places.py:{first + next(i for i, x in enumerate(lines) if text in x)}"


def test_functions_that_write_a_step_otherwise_are_the_same():
    assert compared(by_loop).same


@pytest.mark.parametrize("model", [by_loop, by_jit, by_scan])
@pytest.mark.parametrize(
    ("mistake", "torchs", "jaxs", "cause"),
    [
        ({"epsilon": 1e-5}, "1e-6", (block, "jnp.mean"), "epsilon=1e-06 (it acts as 1e-05)"),
        ({"scale": 2.3}, "1.7", (block, "jnp.split"), "the number of div=1.7 (it acts as 2.3)"),
        ({"activation": jax.nn.gelu}, "silu", (linear, "@"), "silu (it acts as gelu(approximate=True))"),
        ({"residual": 0.0}, "self.out(", (linear, "@"), "the other operand is added (it is left out)"),
    ],
    ids=["epsilon", "scale", "activation", "residual"],
)
def test_the_line_is_named(model, mistake, torchs, jaxs, cause):
    divergence = compared(model, **mistake).divergence
    assert divergence.candidate == line(*jaxs), divergence.where
    assert cause in [cause.text for cause in divergence.causes]
    assert f"in {line(Block.forward, torchs)} returns" in divergence.where, divergence.where


def test_without_an_equal_array_the_place_is_the_first_call():
    divergence = compared(lambda p, x: by_loop(p, x + 1)).divergence
    assert divergence.candidate == "the inputs"
    assert f"torch's pow in {line(Block.forward, 'pow')} returns" in divergence.where
    assert divergence.where.endswith("Look after the inputs.")


def test_nested_scans_of_many_turns_are_not_taken_apart():
    """Of 32 x 32 turns the program would have every equation."""

    def nested(p, x):
        def outer(x, _):
            return jax.lax.scan(lambda x, _: (x * 1.0, None), x, None, length=32)[0], None

        return by_loop(p, jax.lax.scan(outer, x, None, length=32)[0], epsilon=1e-5)

    torch.manual_seed(0)
    reference = Reference()
    pair = reference, (nested, tree(reference)), X
    turns = []
    original = values._Values._turns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            values._Values,
            "_turns",
            lambda self, equation, operands: (
                turns.append(equation.params["length"]) or original(self, equation, operands)
            ),
        )
        divergence = parity.compare(*pair).divergence
    assert set(turns) == {32}
    assert len(turns) <= 2, "the outer scan alone, in each of two traces"
    assert divergence.candidate == line(block, "jnp.mean")
