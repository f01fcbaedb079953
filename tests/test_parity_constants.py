"""Tables that were rounded to float32 before a comparison: a verdict of their own, and only for them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxpar import parity

torch = pytest.importorskip("torch")

X = np.random.RandomState(0).randn(4, 6)
FREQUENCIES = 1 / 10000 ** (np.arange(6) / 6)
ANGLES = np.arange(3, 9) * FREQUENCIES
SINES = jnp.asarray(np.sin(ANGLES), jnp.float32)


def single(x):
    return torch.tensor(np.asarray(x), dtype=torch.float32)


class Torch(torch.nn.Module):
    """A table as a buffer, as an attribute, or out of the module."""

    def __init__(self, table, kind="buffer"):
        super().__init__()
        self.d = torch.nn.Linear(6, 3)
        if kind == "buffer":
            self.register_buffer("table", table, persistent=False)
        elif kind == "parameter":
            self.table = torch.nn.Parameter(table, requires_grad=False)
        elif kind == "attribute":
            self.table = table
        else:
            self.look_up = lambda: table
        self.kind = kind

    def forward(self, x):
        return self.d(x + (self.look_up() if self.kind == "global" else self.table))


class Flax(nnx.Module):
    def __init__(self, table):
        self.d, self.table = nnx.Linear(6, 3, rngs=nnx.Rngs(0)), table

    def __call__(self, x):
        return self.d(x + self.table())


def computed():
    return jnp.sin(jnp.arange(3, 9) / 10000 ** (jnp.arange(6, dtype=jnp.float32) / 6))


def training(steps):
    pair = lambda p: torch.optim.SGD(p, 0.1), optax.sgd(0.1)
    return {"optimizer": pair, "steps": steps}


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    "options", [{}, training(3), {"replicas": 2}], ids=["one", "three steps", "replicas"]
)
@pytest.mark.parametrize("kind", ["buffer", "parameter", "attribute", "global"])
def test_a_table_of_torch_that_flax_computes(kind, options):
    ignored = ["table"] if kind == "parameter" else []
    found = parity.compare(
        Torch(single(np.sin(ANGLES)), kind), Flax(computed), X, ignore_torch=ignored, **options
    )
    assert found.same
    assert {row.outcome for row in found.rows} >= {parity.Outcome.CONSTANTS}
    (name,) = found.constants
    assert name == "torch's table" if kind != "global" else "float32[6]" in name
    assert name in str(found).replace("\n", " ")
    assert "moves" in found.notes[-1]
    assert "apart" in found.notes[-1]


def test_a_table_of_flax_that_torch_computes():
    class Computing(Torch):
        def forward(self, x):
            frequencies = 10000 ** (torch.arange(6) / 6)
            return self.d(x + torch.sin(torch.arange(3, 9) / frequencies))

    found = parity.compare(Computing(None), Flax(lambda: SINES), X)
    assert found.same
    (name,) = found.constants
    assert name.startswith("Flax's float32[6] in test_parity_constants.py:")


@pytest.mark.parametrize("folder", ["jaxpar", "flax", "torch"])
def test_a_users_folder_may_be_called_like_a_library(folder, tmp_path):
    file = tmp_path / folder / "tables.py"
    file.parent.mkdir()
    file.write_text("def with_table(x, table):\n    return x + table()\n")
    namespace: dict = {}
    exec(compile(file.read_text(), file, "exec"), namespace)

    class InFolder(Flax):
        def __call__(self, x):
            return self.d(namespace["with_table"](x, self.table))

    class Computing(Torch):
        def forward(self, x):
            return self.d(x + torch.sin(torch.arange(3, 9) / 10000 ** (torch.arange(6) / 6)))

    found = parity.compare(Computing(None), InFolder(lambda: SINES), X)
    (name,) = found.constants
    assert name == "Flax's float32[6] in tables.py:2"


def test_a_table_that_was_computed_in_float32():
    """It is off by more than half a unit; with Flax's in torch everything agrees."""
    angles = torch.arange(3, 9).float() * 37 * single(FREQUENCIES)
    table = jnp.asarray(np.sin(ANGLES * 37), jnp.float32)
    found = parity.compare(Torch(torch.sin(angles)), Flax(lambda: table), X)
    assert found.same
    assert found.constants == ("torch's table",)
    assert "with Flax's in torch everything agrees" in found.notes[-1]


def test_a_table_that_was_computed_in_float32_and_flax_makes_in_the_call():
    """NumPy computes it in float64, and the semantic level leaves it there, as XGLM's positions."""
    table = torch.sin(torch.arange(3, 9).float() * 37 * single(FREQUENCIES))
    found = parity.compare(Torch(table), Flax(lambda: jnp.array(np.sin(ANGLES * 37))), X)
    assert found.same
    assert found.constants == ("torch's table",)
    assert "with Flax's in torch everything agrees" in found.notes[-1]


def test_equal_tables_are_plainly_the_same():
    found = parity.compare(Torch(single(np.asarray(SINES))), Flax(lambda: SINES), X)
    assert found.same
    assert not found.constants
    assert {row.outcome for row in found.rows} == {parity.Outcome.SAME}


WRONG = {
    "another table": lambda: jnp.sin(jnp.asarray(ANGLES) * 1.001),
    "rolled": lambda: jnp.roll(computed(), 1, 0),
    "scaled by a part in a million": lambda: computed() * (1 + 1e-6),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_table_is_different(what):
    found = parity.compare(Torch(single(np.sin(ANGLES))), Flax(WRONG[what]), X)
    assert not found.same
    assert not found.constants


def test_a_bug_beside_a_rounded_table_is_different_and_comes_first():
    class Wrong(Flax):
        def __call__(self, x):
            return super().__call__(x) * 1.01

    found = parity.compare(Torch(single(np.sin(ANGLES))), Wrong(computed), X)
    assert not found.same
    assert not found.constants
    assert found.divergence.kind == "after the last layer"


def test_numbers_of_few_digits_are_no_constants():
    """Positions and masks are exact in float32, so they explain nothing."""
    found = parity.compare(Torch(single(np.arange(6))), Flax(lambda: jnp.arange(6) * (1 + 1e-9)), X)
    assert not found.same


def test_it_survives_a_document():
    found = parity.compare(Torch(single(np.sin(ANGLES))), Flax(computed), X)
    again = parity.Comparison.from_json(parity_json(found))
    assert again.constants == found.constants
    assert again.same


def parity_json(found):
    from jaxpar.parity._render import document

    return document.dumps(found)


class TorchRotary(torch.nn.Module):
    """Angles of positions up to 1000, of frequencies in float32: their rounding moves outputs by 1e-5."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", 10000 ** -(torch.arange(0, 8, 2) / 8), persistent=False)
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x):
        angles = torch.arange(992, 1000, dtype=x.dtype)[:, None] * self.frequencies
        return self.norm(x * torch.cos(angles))


class FlaxRotary(nnx.Module):
    def __init__(self, epsilon):
        self.norm = nnx.LayerNorm(4, epsilon=epsilon, use_fast_variance=False, rngs=nnx.Rngs(0))

    def __call__(self, x):
        frequencies = jnp.asarray(10000 ** -(np.arange(0, 8, 2) / 8))
        return self.norm(x * jnp.cos(jnp.arange(992, 1000)[:, None] * frequencies))


@pytest.mark.parametrize(("epsilon", "same"), [(1e-5, True), (1e-6, False)])
def test_a_table_does_not_excuse_a_mistake_of_its_size(epsilon, same):
    x = np.random.RandomState(0).randn(8, 4)
    assert parity.compare(TorchRotary(), FlaxRotary(epsilon), x).same is same
