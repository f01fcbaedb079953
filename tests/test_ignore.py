"""ignore_torch and ignore_flax: what is left out is named in the notes, and the rest is compared as ever."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from jaxpar import parity
from jaxpar.errors import MatchError

torch = pytest.importorskip("torch")

X = np.random.RandomState(0).randn(3, 4)
TABLE = [1.0, 0.5, 0.25, 0.125]


class Torch(torch.nn.Module):
    """Has a table and a head that the Flax model computes, or does without."""

    def __init__(self):
        super().__init__()
        self.fc, self.unused = torch.nn.Linear(4, 4), torch.nn.Linear(2, 2)
        self.register_buffer("table", torch.tensor(TABLE))

    def forward(self, x):
        return self.fc(x) * self.table


class Flax(nnx.Module):
    def __init__(self, factor=1.0):
        self.fc, self.factor = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), factor
        self.spare = nnx.Linear(3, 3, rngs=nnx.Rngs(1))
        self.powers = nnx.Variable(jnp.asarray(TABLE))

    def __call__(self, x):
        return self.fc(x) * self.powers[...] * self.factor


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x):
        powers = self.variable("tables", "powers", lambda: jnp.asarray(TABLE))
        return linen.Dense(4, name="fc")(x) * powers.value


THEIRS = {"ignore_torch": ["table", "unused"]}
BOTH = {**THEIRS, "ignore_flax": ["spare", "powers"]}


def test_what_is_left_out_is_said_and_not_compared():
    found = parity.compare(Torch(), Flax(), X, **BOTH)
    assert found.same
    assert found.notes[:2] == (
        "left out, and not compared: torch's table, unused.bias, unused.weight",
        "left out, and not compared: Flax's spare.kernel, spare.bias, powers",
    )
    names = {row.difference.name for row in found.rows}
    assert "fc.kernel" in names
    assert not any("spare" in name or "powers" in name for name in names)


def test_a_fault_in_the_rest_is_found_and_placed():
    found = parity.compare(Torch(), Flax(1.001), X, **BOTH)
    assert not found.same
    assert "look after fc" in found.divergence.where


def test_several_steps_with_own_weights():
    sgd = pytest.importorskip("optax").sgd(0.1, momentum=0.9)
    both = (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), sgd)
    theirs, ours = Torch(), Flax()
    parity.load_torch(ours, theirs, **BOTH, lossy=True)
    assert parity.compare(theirs, ours, X, **BOTH, weights="own", optimizer=both, steps=3).same


def test_the_error_names_the_function_that_was_called():
    with pytest.raises(MatchError, match=r"^parity\.compare: Torch and the Flax model do not match"):
        parity.compare(Torch(), Flax(), X)
    with pytest.raises(MatchError, match=r"ignore_torch: there is no 'tables'; near are table"):
        parity.compare(Torch(), Flax(), X, ignore_torch=["tables"])
    with pytest.raises(MatchError, match=r"write \['table'\]"):
        parity.compare(Torch(), Flax(), X, ignore_torch="table")


def test_leaves_of_linen_that_keep_their_values_must_have_some():
    with pytest.raises(ValueError, match=r"ignore_flax=\['powers'\] keep their values, and a Linen module"):
        parity.compare(Torch(), Linen(), X, **THEIRS, ignore_flax=["powers"])
    variables = {"params": {"fc": {"kernel": jnp.zeros((4, 4)), "bias": jnp.zeros(4)}}}
    right = {**variables, "tables": {"powers": jnp.asarray(TABLE)}}
    wrong = {**variables, "tables": {"powers": jnp.asarray(TABLE) * 2}}
    both = {**THEIRS, "ignore_flax": ["powers"]}
    assert parity.compare(Torch(), Linen(), X, variables=right, **both).same
    assert not parity.compare(Torch(), Linen(), X, variables=wrong, **both).same


def test_a_record_leaves_out_the_same(tmp_path):
    parity.record(tmp_path / "net.safetensors", Torch(), Flax(), X, **BOTH)
    assert parity.check(tmp_path / "net.safetensors", Flax()).same
    assert not parity.check(tmp_path / "net.safetensors", Flax(1.001)).same
