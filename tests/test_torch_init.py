"""jaxpar.random.torch_init against torch.manual_seed and torch's constructors, to the last bit."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bits import assert_same_bits
from flax import linen, nnx

import jaxpar
from jaxpar._rulebook import rule_for
from jaxpar.errors import MatchError
from jaxpar.random import Generator, init, torch_init

torch = pytest.importorskip("torch")
T: Any = torch.nn
J = jaxpar.nn
rngs = nnx.Rngs(0)


def lstm(r: nnx.Rngs) -> nnx.RNN:
    return nnx.RNN(nnx.OptimizedLSTMCell(5, 7, rngs=r))


def attention(r: nnx.Rngs, **options: Any) -> nnx.MultiHeadAttention:
    return nnx.MultiHeadAttention(4, 12, 12, 12, decode=False, rngs=r, **options)


LAYERS = {
    "Linear": (lambda r: nnx.Linear(7, 5, rngs=r), lambda: T.Linear(7, 5)),
    "Linear, no bias": (
        lambda r: nnx.Linear(7, 5, use_bias=False, rngs=r),
        lambda: T.Linear(7, 5, bias=False),
    ),
    "Linear, large": (lambda r: nnx.Linear(300, 200, rngs=r), lambda: T.Linear(300, 200)),
    "Linear, nothing comes in": (
        lambda r: nnx.Linear(0, 3, kernel_init=nnx.initializers.zeros, rngs=r),
        lambda: T.Linear(0, 3),
    ),
    "LinearGeneral": (
        lambda r: nnx.LinearGeneral((2, 3), (4, 5), axis=(-2, -1), rngs=r),
        lambda: T.Linear(6, 20),
    ),
    "Conv1d": (lambda r: nnx.Conv(4, 6, (3,), rngs=r), lambda: T.Conv1d(4, 6, 3)),
    "Conv2d": (lambda r: nnx.Conv(4, 6, (3, 5), rngs=r), lambda: T.Conv2d(4, 6, (3, 5))),
    "Conv2d, groups": (
        lambda r: nnx.Conv(4, 6, (3, 5), feature_group_count=2, rngs=r),
        lambda: T.Conv2d(4, 6, (3, 5), groups=2),
    ),
    "Conv2d, each channel alone": (
        lambda r: nnx.Conv(4, 4, (3, 3), feature_group_count=4, use_bias=False, rngs=r),
        lambda: T.Conv2d(4, 4, 3, groups=4, bias=False),
    ),
    "Conv3d": (lambda r: nnx.Conv(4, 6, (3, 2, 2), rngs=r), lambda: T.Conv3d(4, 6, (3, 2, 2))),
    "ConvTranspose1d": (lambda r: nnx.ConvTranspose(4, 6, (3,), rngs=r), lambda: T.ConvTranspose1d(4, 6, 3)),
    "ConvTranspose2d": (
        lambda r: nnx.ConvTranspose(4, 6, (3, 5), transpose_kernel=True, rngs=r),
        lambda: T.ConvTranspose2d(4, 6, (3, 5)),
    ),
    "ConvTranspose2d, flipped": (
        lambda r: nnx.ConvTranspose(4, 6, (3, 5), rngs=r),
        lambda: T.ConvTranspose2d(4, 6, (3, 5)),
    ),
    "ConvTranspose3d": (
        lambda r: nnx.ConvTranspose(2, 3, (3, 2, 2), use_bias=False, rngs=r),
        lambda: T.ConvTranspose3d(2, 3, (3, 2, 2), bias=False),
    ),
    "jaxpar Conv": (
        lambda r: J.Conv(4, 6, (3, 5), padding=1, padding_mode="reflect", rngs=r),
        lambda: T.Conv2d(4, 6, (3, 5), padding=1, padding_mode="reflect"),
    ),
    "jaxpar ConvTranspose, groups": (
        lambda r: J.ConvTranspose(4, 6, (3, 5), groups=2, rngs=r),
        lambda: T.ConvTranspose2d(4, 6, (3, 5), groups=2),
    ),
    "Embed": (lambda r: nnx.Embed(11, 6, rngs=r), lambda: T.Embedding(11, 6)),
    "Embed, small": (lambda r: nnx.Embed(3, 5, rngs=r), lambda: T.Embedding(3, 5)),
    "jaxpar Embedding, padding": (
        lambda r: J.Embedding(11, 6, padding_idx=-2, rngs=r),
        lambda: T.Embedding(11, 6, padding_idx=-2),
    ),
    "jaxpar EmbeddingBag": (
        lambda r: J.EmbeddingBag(11, 6, padding_idx=0, rngs=r),
        lambda: T.EmbeddingBag(11, 6, padding_idx=0),
    ),
    "jaxpar Bilinear": (lambda r: J.Bilinear(4, 5, 6, rngs=r), lambda: T.Bilinear(4, 5, 6)),
    "jaxpar Bilinear, no bias": (
        lambda r: J.Bilinear(4, 5, 6, bias=False, rngs=r),
        lambda: T.Bilinear(4, 5, 6, bias=False),
    ),
    "BatchNorm": (lambda r: nnx.BatchNorm(6, rngs=r), lambda: T.BatchNorm2d(6)),
    "BatchNorm, not affine": (
        lambda r: nnx.BatchNorm(6, use_scale=False, use_bias=False, rngs=r),
        lambda: T.BatchNorm2d(6, affine=False),
    ),
    "jaxpar BatchNorm": (lambda r: J.BatchNorm(6), lambda: T.BatchNorm1d(6)),
    "jaxpar BatchNorm, no statistics": (
        lambda r: J.BatchNorm(6, track_running_stats=False),
        lambda: T.BatchNorm1d(6, track_running_stats=False),
    ),
    "LayerNorm": (lambda r: nnx.LayerNorm(6, rngs=r), lambda: T.LayerNorm(6)),
    "jaxpar LayerNorm": (lambda r: J.LayerNorm((3, 4)), lambda: T.LayerNorm((3, 4))),
    "GroupNorm": (lambda r: nnx.GroupNorm(6, num_groups=2, rngs=r), lambda: T.GroupNorm(2, 6)),
    "RMSNorm": (lambda r: nnx.RMSNorm(6, rngs=r), lambda: T.RMSNorm(6)),
    "InstanceNorm": (lambda r: nnx.InstanceNorm(6, rngs=r), lambda: T.InstanceNorm2d(6, affine=True)),
    "jaxpar InstanceNorm": (
        lambda r: J.InstanceNorm(6, affine=True, track_running_stats=True),
        lambda: T.InstanceNorm2d(6, affine=True, track_running_stats=True),
    ),
    "jaxpar GroupNorm": (lambda r: J.GroupNorm(2, 6), lambda: T.GroupNorm(2, 6)),
    "jaxpar RMSNorm": (lambda r: J.RMSNorm((3, 4)), lambda: T.RMSNorm((3, 4))),
    "jaxpar SyncBatchNorm": (lambda r: J.SyncBatchNorm(6), lambda: T.SyncBatchNorm(6)),
    "Dropout": (lambda r: nnx.Dropout(0.5, rngs=r), lambda: T.Dropout(0.5)),
    "PReLU": (lambda r: nnx.PReLU(0.25), lambda: T.PReLU()),
    "jaxpar PReLU": (lambda r: J.PReLU(4, 0.125), lambda: T.PReLU(4, 0.125)),
    "MultiHeadAttention": (attention, lambda: T.MultiheadAttention(12, 4)),
    "TransformerEncoderLayer": (
        lambda r: J.TransformerEncoderLayer(12, 3, 20, rngs=r),
        lambda: T.TransformerEncoderLayer(12, 3, 20),
    ),
    "TransformerDecoderLayer": (
        lambda r: J.TransformerDecoderLayer(12, 3, 20, rngs=r),
        lambda: T.TransformerDecoderLayer(12, 3, 20),
    ),
    "MultiHeadAttention, no bias": (
        lambda r: attention(r, use_bias=False),
        lambda: T.MultiheadAttention(12, 4, bias=False),
    ),
    "MultiHeadAttention, other widths": (
        lambda r: attention(r, in_kv_features=8),
        lambda: T.MultiheadAttention(12, 4, kdim=8, vdim=8),
    ),
    **{
        f"jaxpar MultiheadAttention, {options}": (
            lambda r, options=options: J.MultiheadAttention(12, 3, **options, rngs=r),
            lambda options=options: T.MultiheadAttention(12, 3, **options),
        )
        for options in ({}, {"bias": False}, {"add_bias_kv": True}, {"kdim": 5, "vdim": 7})
    },
    "LSTM of a cell": (lstm, lambda: T.LSTM(5, 7)),
    "LSTM of two cells": (
        lambda r: nnx.Bidirectional(lstm(r), lstm(r)),
        lambda: T.LSTM(5, 7, bidirectional=True),
    ),
    "LSTMCell": (lambda r: nnx.LSTMCell(5, 7, rngs=r), lambda: T.LSTMCell(5, 7)),
    "RNNCell": (lambda r: nnx.SimpleCell(5, 7, rngs=r), lambda: T.RNNCell(5, 7)),
    **{
        f"jaxpar {kind}, {options}": (
            lambda r, kind=kind, options=options: getattr(J, kind)(5, 7, **options, rngs=r),
            lambda kind=kind, options=options: getattr(T, kind)(5, 7, **options),
        )
        for kind, options in (
            ("LSTM", {}),
            ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 3}),
            ("GRU", {"num_layers": 12}),
            ("GRU", {"num_layers": 2, "bias": False, "bidirectional": True}),
            ("RNN", {"num_layers": 3}),
            ("LSTMCell", {}),
            ("GRUCell", {}),
            ("RNNCell", {"bias": False}),
        )
    },
}


def leaves(module: nnx.Module) -> dict[str, np.ndarray]:
    state = nnx.to_flat_state(nnx.state(module, nnx.Any(nnx.Param, nnx.BatchStat)))
    return {".".join(map(str, path)): np.asarray(variable.get_raw_value()) for path, variable in state}


def compare(module: nnx.Module, twin: Any, name: str = "") -> int:
    """A layer and its twin, by the rulebook; or a module and its twin with the same names, layer by layer."""
    rule = rule_for(module)
    if rule is None:
        below = [(key, getattr(module, key)) for key in vars(module) if not key.startswith("_")]
        return sum(
            compare(m, getattr(twin, key), f"{name}.{key}") for key, m in below if isinstance(m, nnx.Module)
        )
    tensors = {
        key: tensor.detach().numpy()
        for key, tensor in twin.state_dict().items()
        if key != "num_batches_tracked" or hasattr(module, key)
    }
    want, got = rule.to_flax(tensors), leaves(module)
    assert got.keys() == want.keys(), f"{name}: {got.keys()}, expected {want.keys()}"
    return sum(
        assert_same_bits(f"{name}.{key}", got[key], torch.tensor(np.array(want[key], got[key].dtype)))
        for key in want
    )


@pytest.mark.parametrize("case", LAYERS)
def test_layers(case):
    ours, theirs = LAYERS[case]
    # Shapes alone are quicker to make. But what a PReLU begins with is a value, and eval_shape sorts
    # attributes, which hides the order in which a layer of layers draws.
    if "PReLU" in case or "Transformer" in case:
        module = ours(nnx.Rngs(0))
    else:
        module = nnx.eval_shape(lambda: ours(nnx.Rngs(0)))
    for seed in (0, 2**40 + 7):
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about arrays without elements
            twin = theirs()
        generator = Generator(seed)
        assert torch_init(module, generator) is module
        compare(module, twin, case)
        assert_same_bits("state", generator.get_state(), torch.get_rng_state())


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_dtypes(dtype):
    module = nnx.Linear(30, 20, param_dtype=dtype, rngs=rngs)
    torch.manual_seed(1)
    twin = T.Linear(30, 20, dtype=getattr(torch, dtype))
    torch_init(module, 1)
    assert_same_bits(dtype, np.asarray(module.kernel[...]).T, twin.weight.detach())
    torch.manual_seed(1)
    converted = T.Linear(30, 20).to(getattr(torch, dtype))
    torch_init(module, 1, dtype=np.float32)
    assert_same_bits(dtype, np.asarray(module.kernel[...]).T, converted.weight.detach())


# ------------------------------------------------------------------------------------------- models


class Net(nnx.Module):
    """Attributes not in the alphabet's order, containers, a layer in two places, layers without numbers."""

    def __init__(self, rngs: nnx.Rngs):
        self.stem = nnx.Conv(3, 8, (3, 3), padding=[(1, 1)] * 2, rngs=rngs)
        self.norm = J.BatchNorm(8)
        self.drop = nnx.Dropout(0.0, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(12)])
        self.parts = nnx.Dict(second=nnx.Linear(8, 6, rngs=rngs), first=nnx.Linear(8, 8, rngs=rngs))
        self.again = self.blocks[0]
        self.attend = J.MultiheadAttention(8, 2, batch_first=True, rngs=rngs)
        self.memory = J.LSTM(8, 8, batch_first=True, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = jax.nn.relu(self.norm(self.stem(x))).mean(1)
        for block in [*self.blocks, self.again]:
            x = x + jnp.tanh(block(x))
        x = self.attend(x, x, x)[0] + self.memory(x)[0]
        return self.parts["second"](jnp.tanh(self.parts["first"](x)))


class Twin(T.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = T.Conv2d(3, 8, 3, padding=1)
        self.norm = T.BatchNorm2d(8)
        self.drop = T.Dropout(0.0)
        self.blocks = T.ModuleList([T.Linear(8, 8) for _ in range(12)])
        self.parts = T.ModuleDict()
        self.parts["second"] = T.Linear(8, 6)
        self.parts["first"] = T.Linear(8, 8)
        self.again = self.blocks[0]
        self.attend = T.MultiheadAttention(8, 2, batch_first=True)
        self.memory = T.LSTM(8, 8, batch_first=True)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x))).mean(2).transpose(1, 2)
        for block in [*self.blocks, self.again]:
            x = x + torch.tanh(block(x))
        x = self.attend(x, x, x)[0] + self.memory(x)[0]
        return self.parts["second"](torch.tanh(self.parts["first"](x)))


ORDER = ["stem", "norm", "blocks", "parts.second", "parts.first", "attend", "memory"]


@pytest.mark.full
def test_a_model_computes_what_its_twin_computes():
    module = torch_init(Net(nnx.Rngs(1)), 5)
    torch.manual_seed(5)
    twin = Twin()
    for name in ("stem", "norm", "blocks.7", "parts.second", "parts.first", "attend", "memory"):
        layer: Any = module
        for key in name.split("."):
            layer = layer[int(key)] if key.isdigit() else getattr(layer, key)
        compare(layer, twin.get_submodule(name), name)
    x = np.random.RandomState(0).randn(4, 6, 6, 3).astype(np.float32)
    want = twin(torch.tensor(np.moveaxis(x, -1, 1).copy())).detach().numpy()
    np.testing.assert_allclose(nnx.jit(lambda net, x: net(x))(module, x), want, rtol=1e-5, atol=1e-5)


def test_modules_whose_attributes_were_sorted():
    want = leaves(torch_init(Net(nnx.Rngs(1)), 5))
    for rebuilt in (nnx.clone(Net(nnx.Rngs(2))), nnx.eval_shape(lambda: Net(nnx.Rngs(2)))):
        with pytest.raises(ValueError, match=r"in which order again, attend, blocks.* is lost.*order="):
            torch_init(rebuilt, 5)
        with pytest.raises(
            ValueError, match=r"parts was made by nnx\.clone.*order parts\.first, parts\.second"
        ):
            torch_init(rebuilt, 5, order=["stem", "norm", "blocks", "parts", "attend", "memory"])
        got = leaves(torch_init(rebuilt, 5, order=ORDER))
        for key in want:
            assert_same_bits(key, got[key], torch.tensor(want[key]))


def test_one_after_another_from_one_generator():
    torch.manual_seed(9)
    noise = torch.randn(5)
    twins = [T.Linear(3, 4), T.Linear(4, 3)]
    generator = Generator(9)
    assert_same_bits("noise", generator.randn(5), noise)
    for twin in twins:
        compare(torch_init(nnx.Linear(twin.in_features, twin.out_features, rngs=rngs), generator), twin)


def test_wrapped():
    net = jaxpar.DataParallel(nnx.Linear(3, 4, rngs=rngs), [0, 1])
    torch_init(net, 3)
    torch.manual_seed(3)
    compare(net.module, T.Linear(3, 4))
    assert len(net.module.kernel[...].sharding.device_set) == 2
    net(np.ones((4, 3)))


class Tied(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(20, 8, rngs=rngs)
        self.body = nnx.Linear(8, 8, rngs=rngs)
        self.out = nnx.Embed(20, 8, rngs=rngs)
        self.out.embedding = self.embed.embedding


def test_tied_weights():
    module = torch_init(Tied(rngs), 2)
    torch.manual_seed(2)
    embed, body, out = T.Embedding(20, 8), T.Linear(8, 8), T.Embedding(20, 8)
    out.weight = embed.weight
    compare(module.embed, embed)
    compare(module.out, out)
    compare(module.body, body)


def test_tied_weights_are_visited_twice():
    module = torch_init(
        Tied(rngs), 2, apply=lambda kind, tensors, g: init.normal_(tensors["weight"], 0, 0.02, generator=g)
    )
    torch.manual_seed(2)
    embed, body, out = T.Embedding(20, 8), T.Linear(8, 8), T.Embedding(20, 8)
    for layer in (embed, body, out):
        T.init.normal_(layer.weight, 0, 0.02)
    compare(module.embed, out)
    compare(module.body, body)


def test_a_layer_that_only_the_twin_has():
    head = nnx.eval_shape(lambda: nnx.Linear(8, 20, rngs=nnx.Rngs(0)))
    module = torch_init(Other(rngs), 3, order=["a", "scale", head, "b"], parameters=FILL)
    torch.manual_seed(3)
    compare(module.a, T.Linear(2, 2))
    T.Linear(8, 20)
    compare(module.b, T.Linear(2, 2))
    assert isinstance(head.kernel.get_raw_value(), jax.ShapeDtypeStruct)


class ViT(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.patch = nnx.Linear(12, 8, rngs=rngs)
        self.token = nnx.Param(jnp.ones((1, 1, 8)))
        self.position = nnx.Param(jnp.zeros((1, 5, 8), jnp.float32))
        self.attend = J.MultiheadAttention(8, 2, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.head = nnx.Linear(8, 3, rngs=rngs)


class ViTTwin(T.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = T.Linear(12, 8)
        self.token = T.Parameter(torch.zeros(1, 1, 8))
        self.position = T.Parameter(torch.randn(1, 5, 8) * 0.02)
        self.attend = T.MultiheadAttention(8, 2)
        self.norm = T.LayerNorm(8)
        self.head = T.Linear(8, 3)
        self.apply(self._init_weights)

    def _init_weights(self, module: Any) -> None:
        if isinstance(module, T.Linear):
            T.init.trunc_normal_(module.weight, std=0.02)
            T.init.zeros_(module.bias)
        elif isinstance(module, T.LayerNorm):
            T.init.constant_(module.weight, 0.5)


def test_parameters_and_apply():
    def init_weights(kind: str, tensors: dict[str, np.ndarray], generator: Generator) -> None:
        if kind == "Linear":
            init.trunc_normal_(tensors["weight"], std=0.02, generator=generator)
            init.zeros_(tensors["bias"])
        elif kind == "LayerNorm":
            init.constant_(tensors["weight"], 0.5)

    module = torch_init(
        ViT(rngs),
        4,
        parameters={
            "token": lambda x, generator: init.zeros_(x),
            "position": lambda x, generator: np.multiply(generator.normal_(x), np.float32(0.02), out=x),
        },
        apply=init_weights,
    )
    torch.manual_seed(4)
    twin = ViTTwin()
    assert compare(module, twin) > 300
    assert_same_bits("position", np.asarray(module.position[...]), twin.position.detach())
    assert not np.any(module.token[...])


# --------------------------------------------------------------------------------------- refusals


class Other(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.a = nnx.Linear(2, 2, rngs=rngs)
        self.scale = nnx.Param(jnp.ones(3))
        self.b = nnx.Linear(2, 2, rngs=rngs)


def stacked() -> nnx.Module:
    return nnx.vmap(lambda rngs: nnx.Linear(2, 3, rngs=rngs))(nnx.Rngs(0).split(4))


class Lora(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.layer = nnx.LoRALinear(2, 3, lora_rank=1, rngs=rngs)


FILL = {"scale": lambda x, generator: init.ones_(x)}
REFUSED = [
    (lambda: Other(rngs), {}, r"scale is a parameter of no layer.*parameters=\{'scale'"),
    (
        lambda: Other(rngs),
        {"parameters": FILL | {"a.kernel": None}},
        "parameters names a.kernel, which no layer",
    ),
    (lambda: Other(rngs), {"parameters": FILL, "order": ["a", "b"]}, "order does not name scale"),
    (lambda: Other(rngs), {"parameters": FILL, "order": ["b", "a", "scale", "c"]}, "order names 'c', where"),
    (stacked, {}, r"Linear, whose weight has 2 axes, and here.*nnx\.vmap"),
    (
        lambda: nnx.eval_shape(lambda: nnx.PReLU()),
        {},
        "PReLU, which begins with what its constructor is told",
    ),
    (
        lambda: J.WeightNorm(nnx.Linear(2, 3, rngs=rngs)),
        {},
        "the module is torch's ParametrizedLinear, which begins with norms",
    ),
    (lambda: Lora(rngs), {}, "layer.lora.lora_. is no parameter of torch's Linear"),
    (lambda: nnx.GRUCell(2, 3, rngs=rngs), {}, "torch's b_hn, is not 0"),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_refused_and_nothing_changed(case):
    make, options, message = REFUSED[case]
    module = make()
    before = jax.tree.leaves(nnx.state(module))
    with pytest.raises((MatchError, ValueError), match=message):
        torch_init(module, 0, **options)
    assert all(a is b for a, b in zip(before, jax.tree.leaves(nnx.state(module)), strict=True))


def test_no_nnx_module():
    with pytest.raises(TypeError, match=r"expected an nnx\.Module, but got Dense"):
        torch_init(linen.Dense(3), 0)


def test_another_order():
    module = torch_init(Other(rngs), 6, order=["b", "scale", "a"], parameters=FILL)
    torch.manual_seed(6)
    compare(module.b, T.Linear(2, 2))
    compare(module.a, T.Linear(2, 2))


def test_a_planted_fault_is_found():
    module = torch_init(nnx.Linear(3, 4, rngs=rngs), 0)
    torch.manual_seed(0)
    twin = T.Linear(3, 4)
    compare(module, twin)
    kernel = np.array(module.kernel[...])
    kernel[1, 2] = np.nextafter(kernel[1, 2], 1)
    module.kernel.set_value(jnp.asarray(kernel))
    with pytest.raises(AssertionError, match="1 of 12 numbers differ"):
        compare(module, twin)
