"""match guesses layers that are one in torch and several in Flax, the reverse, and stacks."""

from __future__ import annotations

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxpar import parity
from jaxpar.errors import MatchError
from jaxpar.parity import concatenated, split, stacked

D, HEADS, DEPTH = 8, 2, 3
X = np.random.RandomState(0).randn(2, 5, D).astype(np.float32)
attend = torch.nn.functional.scaled_dot_product_attention


class Fused(torch.nn.Module):
    order = (3, HEADS)  # of the axes of qkv's outputs

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = torch.nn.Linear(D, 3 * D), torch.nn.Linear(D, D)

    def forward(self, x):
        qkv = self.qkv(x).reshape(*x.shape[:2], *self.order, D // HEADS)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2 + self.order.index(3)))
        return self.proj(attend(q, k, v).transpose(1, 2).reshape(x.shape))


class ByHeads(Fused):
    order = (HEADS, 3)


class Apart(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.proj = (torch.nn.Linear(D, D) for _ in range(4))

    def forward(self, x):
        heads = (
            layer(x).reshape(*x.shape[:2], HEADS, -1).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        return self.proj(attend(*heads).transpose(1, 2).reshape(x.shape))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.norm = Fused(), torch.nn.LayerNorm(D)
        self.fc1, self.fc2 = torch.nn.Linear(D, 16), torch.nn.Linear(16, D)

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.fc2(torch.tanh(self.fc1(x)))


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = torch.nn.ModuleList([Block() for _ in range(DEPTH)]), torch.nn.Linear(D, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Gated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = (torch.nn.Linear(*sizes) for sizes in ((D, 16), (16, D), (D, 16)))

    def forward(self, x):
        return self.w2(torch.nn.functional.silu(self.w1(x)) * self.w3(x))


class FlaxApart(linen.Module):
    @linen.compact
    def __call__(self, x):
        heads = (linen.DenseGeneral((HEADS, D // HEADS), name=name)(x) for name in ("query", "key", "value"))
        return linen.DenseGeneral(D, axis=(-2, -1), name="out")(jax.nn.dot_product_attention(*heads))


class FlaxFused(linen.Module):
    @linen.compact
    def __call__(self, x):
        qkv = linen.DenseGeneral((3, HEADS, D // HEADS), name="qkv")(x)
        heads = (qkv[:, :, i] for i in range(3))
        return linen.DenseGeneral(D, axis=(-2, -1), name="out")(jax.nn.dot_product_attention(*heads))


class FlaxBlock(linen.Module):
    @linen.compact
    def __call__(self, x, _=None):
        x = x + FlaxApart(name="attention")(linen.LayerNorm(1e-5, use_fast_variance=False)(x))
        return x + linen.Dense(D)(jnp.tanh(linen.Dense(16)(x))), None


class FlaxBlocks(linen.Module):
    scanned: bool

    @linen.compact
    def __call__(self, x):
        if self.scanned:
            variables = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
            x, _ = linen.scan(FlaxBlock, length=DEPTH, **variables)(name="layers")(x, None)
        else:
            for i in range(DEPTH):
                x, _ = FlaxBlock(name=f"layer_{i}")(x)
        return linen.Dense(3, name="head")(x)


class FlaxGated(linen.Module):
    @linen.compact
    def __call__(self, x):
        gate, up = jnp.split(linen.Dense(32, name="gate_up")(x), 2, -1)
        return linen.Dense(D, name="down")(jax.nn.silu(gate) * up)


def bound(module):
    return module.bind(module.init(jax.random.key(0), X))


def attention():
    return nnx.MultiHeadAttention(HEADS, D, decode=False, rngs=nnx.Rngs(0))


class Wrapped(nnx.Module):
    def __init__(self):
        self.attention = attention()

    def __call__(self, x):
        return self.attention(x)


QKV = [f"{name}" for name in ("query", "key", "value")]
IN_BLOCKS = {"blocks.*.fc1": "{}*.Dense_1", "blocks.*.fc2": "{}*.Dense_0", "blocks.*.norm": "{}*.LayerNorm_0"}


def blocks(prefix):
    attention = [f"{prefix}*.attention.{name}" for name in (*QKV, "out")]
    entries = {"blocks.*.attn.qkv": split(0, attention[:3]), "blocks.*.attn.proj": attention[3]}
    return entries | {key: path.format(prefix) for key, path in IN_BLOCKS.items()}


CASES = {
    "fused_and_apart": (Fused, lambda: bound(FlaxApart()), {"qkv": split(0, QKV), "proj": "out"}),
    "fused_and_nnx": (
        Fused,
        Wrapped,
        {"qkv": split(0, [f"attention.{name}" for name in QKV]), "proj": "attention.out"},
    ),
    "apart_and_fused": (
        Apart,
        lambda: bound(FlaxFused()),
        {("q", "k", "v"): concatenated(0, "qkv"), "proj": "out"},
    ),
    "gated": (
        Gated,
        lambda: bound(FlaxGated()),
        {("w1", "w3"): concatenated(0, "gate_up"), "w2": "down"},
    ),
    "stacked": (
        Blocks,
        lambda: bound(FlaxBlocks(scanned=True)),
        {"blocks": stacked("layers")} | blocks("layers."),
    ),
    "listed": (Blocks, lambda: bound(FlaxBlocks(scanned=False)), blocks("layer_")),
}


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_the_entries_and_the_outputs(case):
    torch.manual_seed(0)
    make_torch, make_flax, entries = CASES[case]
    torch_module, flax_module = make_torch(), make_flax()
    guessed = parity.match(flax_module, torch_module, inputs=(X,))
    assert dict(guessed) == entries
    assert all(reason.startswith("guessed") for reason in guessed.reasons.values())
    assert guessed.reasons.keys() == guessed.keys()
    assert parity.compare(torch_module, flax_module, X, mapping=guessed).same
    with pytest.raises(MatchError, match="this may be meant") as raised:
        parity.compare(torch_module, flax_module, X)
    for key, target in list(guessed.items())[:4]:
        assert f"{key!r}: {target!r}" in str(raised.value)


@pytest.mark.full
def test_heads_that_stand_side_by_side_are_tried():
    guessed = parity.match(Wrapped(), ByHeads(), example=X)
    assert guessed["qkv"] == split(0, [f"attention.{name}" for name in QKV], groups=HEADS)
    assert "tried: with random weights the outputs agree" in str(guessed)
    assert parity.compare(ByHeads(), Wrapped(), X, mapping=guessed).same


def test_no_order_of_heads_fits_another_model():
    class Other(Fused):
        def forward(self, x):
            return super().forward(x) * 2

    assert "none fits" in str(parity.match(Wrapped(), Other(), example=X))


def linears(**sizes):
    return torch.nn.ModuleDict({name: torch.nn.Linear(*size) for name, size in sizes.items()})


def flax_linears(**sizes):
    return nnx.Dict({name: nnx.Linear(*size, rngs=nnx.Rngs(0)) for name, size in sizes.items()})


def linear(bias):
    return torch.nn.Linear(4, 4, bias=bias)


@nnx.split_rngs(splits=2)
@nnx.vmap
def scanned(rngs):
    return nnx.Linear(4, 4, rngs=rngs)


NOTHING = {
    "roles_are_missing": (linears(fc=(4, 12)), flax_linears(a=(4, 4), b=(4, 4), c=(4, 4))),
    "sizes_differ": (linears(qkv=(4, 12)), flax_linears(query=(4, 4), key=(4, 4), value=(4, 8))),
    "inputs_differ": (linears(qkv=(4, 12)), flax_linears(query=(4, 4), key=(4, 4), value=(5, 4))),
    "two_for_one": (
        linears(qkv=(4, 12), kvq=(4, 12)),
        flax_linears(query=(4, 4), key=(4, 4), value=(4, 4)),
    ),
    "a_role_is_missing": (linears(qkv=(4, 12)), flax_linears(query=(4, 4), value=(4, 4))),
    "layers_that_differ": (
        torch.nn.ModuleDict({"layers": torch.nn.ModuleList([linear(True), linear(False)])}),
        nnx.Dict({"scanned": scanned(nnx.Rngs(0))}),
    ),
}


@pytest.mark.parametrize("case", NOTHING)
def test_nothing_is_guessed(case):
    torch_module, flax_module = NOTHING[case]
    assert dict(parity.match(flax_module, torch_module)) == {}


def test_a_layer_of_the_same_shape_needs_a_name():
    """An MLP as wide as q, k and v together is no fused layer; a layer named so is one."""
    torch_module = linears(fc=(4, 12), to_qkv=(4, 12))
    flax_module = flax_linears(fc_in=(4, 12), query=(4, 4), key=(4, 4), value=(4, 4))
    guessed = parity.match(flax_module, torch_module)
    assert dict(guessed) == {"to_qkv": split(0, QKV), "fc": "fc_in"}


def test_what_is_known_stays():
    known = {"qkv": split(0, QKV, groups=HEADS)}
    guessed = parity.match(bound(FlaxApart()), Fused(), mapping=known, inputs=(X,))
    assert dict(guessed) == {**known, "proj": "out"}
    assert "qkv" not in guessed.reasons


class Pooled(torch.nn.Module):
    """Blocks with a fused qkv, and a pooling whose query is apart from its fused keys and values."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Fused(), Fused()])
        self.pool = torch.nn.ModuleDict(
            {name: torch.nn.Linear(D, n * D) for name, n in (("q", 1), ("kv", 2))}
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        k, v = self.pool["kv"](x).chunk(2, -1)
        return attend(self.pool["q"](x[:, :1]), k, v)[:, 0]


class PooledFlax(nnx.Module):
    def __init__(self, exchanged=False):
        rngs = nnx.Rngs(0)
        self.apart = nnx.List([AttentionFlax(rngs), AttentionFlax(rngs)])
        self.query, self.key, self.value = (nnx.Linear(D, D, rngs=rngs) for _ in range(3))
        self.exchanged = exchanged

    def __call__(self, x):
        for block in reversed(self.apart):
            x = x + block(x)
        k, v = self.key(x), self.value(x)
        k, v = (v, k) if self.exchanged else (k, v)
        weights = jax.nn.softmax(self.query(x[:, :1]) @ k.swapaxes(1, 2) / D**0.5)
        return (weights @ v)[:, 0]


class AttentionFlax(nnx.Module):
    def __init__(self, rngs):
        self.query, self.key, self.value, self.out = (nnx.Linear(D, D, rngs=rngs) for _ in range(4))

    def __call__(self, x):
        heads = (layer(x).reshape(*x.shape[:2], HEADS, -1) for layer in (self.query, self.key, self.value))
        return self.out(jax.nn.dot_product_attention(*heads).reshape(x.shape))


@pytest.mark.parametrize("exchanged", [False, True])
def test_owners_that_differ_in_what_is_fused_are_matched_in_the_order_of_calls(exchanged):
    net, flax_net = Pooled(), PooledFlax(exchanged)
    mapping = parity.match(flax_net, net, example=X)
    assert not mapping.unmatched
    assert parity.compare(net, flax_net, X, mapping=mapping).same is not exchanged


class Points(torch.nn.Module):
    """A convolution of one element, and a linear layer, by names that Flax has not."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = torch.nn.Conv2d(3, 6, 1), torch.nn.Linear(6, 4)

    def forward(self, x):
        return self.last(torch.tanh(self.conv(x)).mean((2, 3)))


class PointsFlax(nnx.Module):
    """The linear layer for the convolution, and the reverse."""

    def __init__(self, factor=1.0):
        rngs = nnx.Rngs(0)
        self.first, self.head = nnx.Linear(3, 6, rngs=rngs), nnx.Conv(6, 4, (1, 1), rngs=rngs)
        self.factor = factor

    def __call__(self, x):
        x = jnp.tanh(self.factor * self.first(x)).mean((1, 2), keepdims=True)
        return self.head(x)[:, 0, 0]


IMAGES = np.random.RandomState(1).randn(2, 3, 5, 4).astype(np.float32)


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_a_convolution_of_one_element_is_a_linear_layer(factor):
    net, flax_net = Points(), PointsFlax(factor)
    mapping = parity.match(flax_net, net, example=IMAGES, layout="channels_last")
    assert dict(mapping) == {"conv": "first", "last": "head"}
    assert parity.compare(net, flax_net, IMAGES, mapping=mapping, layout="channels_last").same is (
        factor == 1.0
    )
    state = net.state_dict()
    parity.load_torch(flax_net, state, mapping=mapping)
    back = parity.to_torch(flax_net, like=state, mapping=mapping)
    for name, tensor in state.items():
        np.testing.assert_array_equal(back[name], tensor)


def test_a_larger_kernel_is_no_linear_layer():
    net = torch.nn.ModuleDict({"conv": torch.nn.Conv2d(3, 6, (1, 3))})
    assert dict(parity.match(flax_linears(first=(3, 6)), net)) == {}


def test_one_owner_that_does_not_fit_leaves_all_to_the_user():
    """Torch fuses keys and values twice; of Flax's two owners one has keys and values of other widths."""
    fitting, other = (
        flax_linears(query=(4, 4), key=(4, 4), value=(4, 4)),
        flax_linears(key=(4, 6), value=(4, 6)),
    )
    torch_module = torch.nn.ModuleDict({"a": linears(q=(4, 4), kv=(4, 8)), "b": linears(kv=(4, 8))})
    assert "a.kv" not in dict(parity.match(nnx.Dict({"a": fitting, "b": other}), torch_module))
