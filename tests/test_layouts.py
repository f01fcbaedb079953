"""Layers that torch keeps in another form: Conv1D, weight norm, an attention of four Linears."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from jaxpar import parity
from jaxpar.errors import MatchError

torch = pytest.importorskip("torch")
tn = torch.nn

X = np.random.RandomState(0).randn(2, 3, 4)
SHAPE = (jax.ShapeDtypeStruct((2, 3, 4), jnp.float32),)


class Conv1D(tn.Module):
    """As in transformers' GPT-2: a Linear whose weight is (in, out)."""

    def __init__(self, out: int, into: int):
        super().__init__()
        self.weight, self.bias = tn.Parameter(torch.randn(into, out) * 0.3), tn.Parameter(torch.randn(out))

    def forward(self, x):
        shape = (*x.shape[:-1], self.bias.shape[0])
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(shape)


class Own(Conv1D):
    """Of another name, with torch's usual layout."""

    def forward(self, x):
        return tn.functional.linear(x, self.weight, self.bias)


class Scaled(Conv1D):
    """Nobody knows what this is."""

    def forward(self, x):
        return 2 * super().forward(x)


def alone(layer: tn.Module) -> tn.Module:
    return tn.Sequential(layer)


class Alone(nnx.Module):
    def __init__(self, layer: Any):
        self.layers = nnx.List([layer])

    def __call__(self, x):
        return self.layers[0](x)


def linear(into: int = 4, out: int = 4) -> nnx.Linear:
    return nnx.Linear(into, out, rngs=nnx.Rngs(0))


ALONE = {"0": "layers.0"}


@pytest.mark.parametrize("out", [4, 6])
def test_a_linear_kept_as_conv1d(out):
    theirs = alone(Conv1D(out, 4))
    ours = parity.load_torch(Alone(linear(4, out)), theirs, mapping=ALONE)
    assert np.array_equal(ours.layers[0].kernel[...], theirs[0].weight.detach().numpy())
    back = parity.to_torch(ours, like=theirs, mapping=ALONE)
    assert all(torch.equal(back[name], x) for name, x in theirs.state_dict().items())
    assert parity.compare(theirs, ours, X, mapping=ALONE).same


def test_a_linear_of_an_unknown_class_is_tried():
    theirs = alone(Own(4, 4))
    assert parity.compare(theirs, Alone(linear()), X, mapping=ALONE).same
    # Values in which both layouts are the same say nothing, so it is tried with others.
    with torch.no_grad():
        theirs[0].weight.copy_(torch.eye(4))
    ours = parity.load_torch(Alone(linear()), theirs, mapping=ALONE)
    with torch.no_grad():
        theirs[0].weight[0, 1] = 7
    parity.load_torch(ours, theirs, mapping=ALONE)
    assert ours.layers[0].kernel[1, 0] == 7


def test_what_is_no_linear_stays_unknown():
    with pytest.raises(MatchError, match=r"0\.weight belongs to torch's Scaled, which is no Linear"):
        parity.load_torch(Alone(linear()), alone(Scaled(4, 4)), mapping=ALONE)


class Fused(tn.Module):
    def __init__(self, kind: Any):
        super().__init__()
        self.c_attn, self.c_proj = kind(12, 4), kind(4, 4)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (2, 2)).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        y = tn.functional.scaled_dot_product_attention(q, k, v)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Attention(nnx.Module):
    def __init__(self):
        self.attn = nnx.MultiHeadAttention(2, 4, decode=False, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.attn(x)


def places(*order: str) -> dict[str, Any]:
    return {
        "c_attn": parity.split(-1, [f"attn.{name}" for name in order]),
        "c_proj": "attn.out",
    }


@pytest.mark.full
def test_gpt2s_attention():
    torch.manual_seed(0)
    theirs = Fused(Conv1D)
    found = parity.compare(theirs, Attention(), X, mapping=places("query", "key", "value"))
    assert found.same, str(found)
    assert {"attn.key.kernel", "attn.key.bias"} <= {row.difference.name for row in found.rows}
    assert not parity.compare(theirs, Attention(), X, mapping=places("key", "value", "query")).same


class FourLinears(tn.Module):
    def __init__(self, out: str = "o_proj"):
        super().__init__()
        self.out = out
        for name in ("v_proj", "k_proj", "q_proj", out):
            setattr(self, name, tn.Linear(4, 4))

    def forward(self, x):
        q, k, v = (
            getattr(self, f"{n}_proj")(x).unflatten(-1, (2, 2)).transpose(1, 2) for n in ("q", "k", "v")
        )
        weights = torch.softmax(q @ k.mT / math.sqrt(2), -1)
        return getattr(self, self.out)((weights @ v).transpose(1, 2).flatten(2))


class LinenAttention(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.MultiHeadDotProductAttention(2, name="attn")(x)


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("out", ["o_proj", "out_proj"])
@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_four_linears_are_one_attention(kind, out):
    theirs = tn.ModuleDict({"attn": FourLinears(out)})
    theirs.forward = theirs["attn"].forward
    ours = Attention() if kind == "nnx" else LinenAttention()
    found = parity.match(ours, theirs, inputs=SHAPE)
    words = {"q_proj": "query", "k_proj": "key", "v_proj": "value", out: "out"}
    assert dict(found) == {f"attn.{theirs}": f"attn.{mine}" for theirs, mine in words.items()}
    assert not found.unmatched

    class Net(tn.Module):
        def __init__(self):
            super().__init__()
            self.attn = FourLinears(out)

        def forward(self, x):
            return self.attn(x)

    torch.manual_seed(0)
    net = Net()
    assert parity.compare(net, ours, X, mapping=found).same
    state = parity.to_torch(Attention(), mapping=found, numpy=True)
    assert state.keys() == net.state_dict().keys()
    wrong = dict(found) | {"attn.q_proj": "attn.key", "attn.k_proj": "attn.query"}
    assert parity.compare(net, ours, X, mapping=wrong).same is False


# ------------------------------------------------------------------------------------- weight norm


class LinenNormed(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.WeightNorm(linen.Dense(5, name="fc"))(x)
        return linen.WeightNorm(linen.Conv(3, (2,), padding="VALID", name="conv"))(x)


class TorchNormed(tn.Module):
    def __init__(self, norm: Any):
        super().__init__()
        self.fc, self.conv = norm(tn.Linear(4, 5)), norm(tn.Conv1d(5, 3, 2))

    def forward(self, x):
        return self.conv(self.fc(x).transpose(1, 2)).transpose(1, 2)


def older(layer: tn.Module) -> tn.Module:
    return tn.utils.weight_norm(layer)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("norm", [tn.utils.parametrizations.weight_norm, older])
def test_weight_norm_of_linen(norm):
    torch.manual_seed(0)
    theirs = TorchNormed(norm)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(1.5).add_(0.1)  # a magnitude that is not the direction's own length
    net = LinenNormed()
    if norm is not older:  # torch cannot copy a module with the older one
        found = parity.compare(theirs, net, X)
        assert found.same, str(found)
        names = {(row.difference.kind.value, row.difference.name) for row in found.rows}
        assert {("gradient", "WeightNorm_0.fc/kernel/scale"), ("gradient", "conv.kernel")} <= names
    variables = parity.load_torch(net, theirs, inputs=SHAPE)
    back = parity.to_torch(net, like=theirs, inputs=SHAPE, variables=variables)
    assert all(torch.equal(back[name], x) for name, x in theirs.state_dict().items())
    implied = parity.to_torch(net, inputs=SHAPE, variables=variables)
    assert implied["fc.parametrizations.weight.original0"].shape == (5, 1)
    assert "fc.weight" not in implied


def test_weight_norm_over_another_axis_is_refused():
    theirs = TorchNormed(lambda layer: tn.utils.parametrizations.weight_norm(layer, dim=1))
    with pytest.raises(MatchError, match=r"original0 \(1, 4\) cannot become"):
        parity.load_torch(LinenNormed(), theirs, inputs=SHAPE)


def test_weight_norm_in_a_plain_layer_is_refused():
    theirs = alone(tn.utils.parametrizations.weight_norm(tn.Linear(4, 4)))
    with pytest.raises(MatchError, match=r"remove_parametrizations makes it one tensor"):
        parity.load_torch(Alone(linear()), theirs, mapping=ALONE)


def test_weight_norm_in_torchs_own_form():
    class Own(nnx.Module):
        def __init__(self):
            self.weight_g, self.weight_v = nnx.Param(jnp.ones((5, 1))), nnx.Param(jnp.ones((5, 4)))
            self.bias = nnx.Param(jnp.ones(5))

        def __call__(self, x):
            v = self.weight_v[...]
            return x @ (v / jnp.linalg.norm(v, axis=1, keepdims=True) * self.weight_g[...]).T + self.bias[...]

    theirs = tn.utils.parametrizations.weight_norm(tn.Linear(4, 5))
    assert parity.compare(theirs, Own(), X).same


# ------------------------------------------------------------------------------------- order of calls


class Scale(linen.Module):
    @linen.compact
    def __call__(self, x):
        return x * self.param("weight", linen.initializers.ones, (4,))


class Twice(linen.Module):
    @linen.compact
    def __call__(self, x):
        return Scale(name="a_second")(jnp.tanh(Scale(name="z_first")(x)))


class TorchScale(tn.Module):
    def __init__(self):
        super().__init__()
        self.weight = tn.Parameter(torch.randn(4))

    def forward(self, x):
        return x * self.weight


def test_layers_without_a_rule_are_guessed_in_the_order_of_calls():
    theirs = tn.Sequential(TorchScale(), tn.Tanh(), TorchScale())
    found = parity.match(Twice(), theirs, inputs=SHAPE)
    assert dict(found) == {"0": "z_first", "2": "a_second"}
    assert parity.compare(theirs, Twice(), X, mapping=found).same
