"""parity.compare: complex parameters and outputs, of which neither part may be dropped."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxpar import parity

torch = pytest.importorskip("torch")

X = np.random.RandomState(0).randn(3, 2)


class Torch(torch.nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.inside, self.outputs = torch.nn.Linear(2, 4), outputs
        self.w = torch.nn.Parameter(0.2 * torch.randn(4, 4, dtype=torch.cfloat))

    def forward(self, x):
        y = torch.fft.fft(self.inside(x)) @ self.w
        return y if self.outputs == "complex" else torch.view_as_real(y)


class Flax(nnx.Module):
    def __init__(self, outputs, change=lambda y: y):
        self.inside, self.outputs, self.change = nnx.Linear(2, 4, rngs=nnx.Rngs(0)), outputs, change
        self.w = nnx.Param(jnp.zeros((4, 4), jnp.complex64))

    def __call__(self, x):
        y = self.change(jnp.fft.fft(self.inside(x)) @ self.w[...])
        return y if self.outputs == "complex" else jnp.stack([y.real, y.imag], -1)


@pytest.mark.parametrize("outputs", ["complex", "real"])
def test_complex_numbers(outputs):
    found = parity.compare(Torch(outputs), Flax(outputs), X)
    assert found.same, f"{found}"
    kinds = {row.difference.kind for row in found.rows}
    assert kinds >= {parity.Kind.OUTPUT, parity.Kind.GRADIENT, parity.Kind.INPUT_GRADIENT}


@pytest.mark.parametrize("change", [jnp.conj, lambda y: y.real + 0j, lambda y: 1j * y])
def test_a_difference_in_one_part_is_one(change):
    found = parity.compare(Torch("complex"), Flax("complex", change), X)
    different = {row.difference.kind for row in found.different}
    assert different >= {parity.Kind.OUTPUT, parity.Kind.GRADIENT}


# optax moves along the conjugate, uphill in the imaginary part
def test_optax_takes_gradients_of_complex_parameters_as_they_are():
    sgd = lambda p: torch.optim.SGD(p, 0.05)  # noqa: E731
    found = parity.compare(Torch("real"), Flax("real"), X, steps=2, optimizer=(sgd, optax.sgd(0.05)))
    (cause,) = found.divergence.causes
    assert "conjugate them first" in cause.text
    conjugated = optax.chain(optax.stateless(lambda u, p: jax.tree.map(jnp.conj, u)), optax.sgd(0.05))
    assert parity.compare(Torch("real"), Flax("real"), X, steps=2, optimizer=(sgd, conjugated)).same
