"""Traps: modules that a proof on random inputs, compiled in float64, would pass though the file is wrong."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch
from flax import nnx
from porting import traps

from jaxpar import parity
from jaxpar.nn import channels_first as nn
from jaxpar.parity._port import proof, variants
from jaxpar.parity._port.rules.rule import table

pytestmark = pytest.mark.slow
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
TRAPS = {
    traps.CopiedDropout: ((X,), 0, "nn.deepcopy(layer)"),
    traps.OrderOfKeys: (({"z": X, "a": X + 1},), 1, "in float32, compiled: outputs is"),
    traps.ParametersByName: ((X,), 1, "in float32: outputs is"),
    traps.LargeIntegers: ((torch.arange(12).view(3, 4) * 977,), 1, "in float32: outputs is"),
    traps.Autocast: ((X,), 2, "it computes in another type"),
    traps.PaddedEncoder: (
        (
            torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)),
            torch.zeros(3, 5, dtype=torch.bool),
        ),
        *(1, "in float32, with zeros in the inputs: outputs is"),
    ),
    traps.AliasNotRun: ((X,), 0, "z.mul_(2): it may change y as well, in place"),
    traps.AliasBoundNotRun: ((X,), 0, "z = y.t().t(): a later line may change y as well, in place"),
    traps.MaskNotRun: ((X,), 0, "mask.reshape(3, 1, 4)"),
    traps.IntegerPower: ((torch.tensor([1, 2, 3]),), 0, "F.pow(2, self.i[...])"),
    traps.Frozen: ((torch.tensor([1, 2, 3]),), 2, "has no _freeze"),
    traps.Kinks: ((X,), 0, "F.clamp(x, -1, max=1)"),
}


@pytest.mark.sampled(7)
@pytest.mark.filterwarnings("ignore:.*nested.*:UserWarning")
@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
def test_a_trap_is_right_or_named(trap):
    inputs, status, text = TRAPS[trap]
    port = parity.port(trap, *inputs)
    assert (port.status, port.failure) == (status, ""), port.comparison or port.differences
    assert any(text in part for part in (port.source, *port.differences, *port.holes))
    if port.differences:
        assert "NOT THE SAME as torch. Different: in float32" in port.source.replace("\n", " ")


def test_lines_that_did_not_run_are_torchs_as_well():
    port = parity.port(traps.MaskNotRun, X)
    mask = (X > 0).long()
    net = traps.MaskNotRun()
    parity.load_torch(port.module, net)
    expected = net(X, mask).detach().numpy()
    assert abs(port.module(jnp.asarray(X.numpy()), jnp.asarray(mask.numpy())) - expected).max() < 1e-6


KINKS = {
    "clamp": "clamp(min=, max=) -> jnp.clip({self}<, {min}><, max={max}>)",
    "std": "std(dim) -> {self:a}.std({dim:t}, ddof=1)",
    "norm": "norm(dim) -> jnp.linalg.norm({self}, axis={dim})",
    "abs": "abs() -> jnp.abs({self})",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", KINKS)
def test_a_derivative_at_a_kink_is_compared(name, monkeypatch):
    """Planted: jax.numpy's functions, whose values are torch's."""
    monkeypatch.setitem(parity._port.rules.METHODS, name, table(KINKS[name])[name])
    monkeypatch.setattr(proof, "SEARCH", 1e-3)
    port = parity.port(traps.Kinks, X)
    assert port.status == 1
    assert "the search for causes was ended by search=0.001 seconds" in str(port.comparison)


def test_variants_have_zeros_padding_and_ties():
    inputs = [X, torch.arange(1, 13).view(3, 4), torch.zeros(3, 4, dtype=torch.bool)]
    (zeros, _), (ties, _) = (variants.variants(inputs, {})[name] for name in ("zeros", "ties"))
    assert (zeros[0] >= 0).all()
    assert (zeros[0][-1] == 0).all()
    assert zeros[0][0].any()
    assert (zeros[1][:, -1] == 0).all()
    assert zeros[2][:, -1].all()
    assert (ties[0] * 2 % 1 == 0).all()
    assert (abs(ties[0]) == 1).any()
    assert all((x[0] == x[1]).all() for x in ties)
    assert (inputs[1] > 0).all()


def test_copies_draw_different_numbers():
    dropout = nn.Dropout(0.5, rngs=nnx.Rngs(0))
    first, second = nn.deepcopy(dropout), nn.deepcopy(dropout)
    x = jnp.ones(64)
    drawn = [layer(x) for layer in (first, second, dropout)]
    assert len({tuple(y.tolist()) for y in drawn}) == 3
    assert jax.tree.structure(nnx.state(first)) == jax.tree.structure(nnx.state(dropout))
