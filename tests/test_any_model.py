"""parity takes functions with and without parameters, Equinox modules and Haiku transforms."""

from __future__ import annotations

from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen

from jaxpar import parity
from jaxpar.errors import MaskError, MatchError

eqx = pytest.importorskip("equinox")
hk = pytest.importorskip("haiku")

X = np.random.RandomState(0).randn(5, 6).astype(np.float32)
IMAGES = np.random.RandomState(1).randn(2, 3, 6, 6).astype(np.float32)


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 8), torch.nn.Linear(8, 2)])
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        return self.layers[1](self.norm(torch.relu(self.layers[0](x))))


class EquinoxNet(eqx.Module):
    layers: list
    norm: eqx.nn.LayerNorm

    def __init__(self, eps=1e-5):
        keys = jax.random.split(jax.random.key(0))
        self.layers = [eqx.nn.Linear(6, 8, key=keys[0]), eqx.nn.Linear(8, 2, key=keys[1])]
        self.norm = eqx.nn.LayerNorm(8, eps=eps)

    def __call__(self, x):
        return jax.vmap(self.one)(x)

    def one(self, x):
        return self.layers[1](self.norm(jax.nn.relu(self.layers[0](x))))


def params_of(net: torch.nn.Module):
    return {
        "layers": [
            {"weight": jnp.zeros(layer.weight.shape), "bias": jnp.zeros(layer.bias.shape)}
            for layer in net.layers
        ],
        "norm": {"weight": jnp.ones(8), "bias": jnp.zeros(8)},
    }


def function(params, x, eps=1e-5):
    first, second = params["layers"]
    x = jax.nn.relu(x @ first["weight"].T + first["bias"])
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + eps)
    return (x * params["norm"]["weight"] + params["norm"]["bias"]) @ second["weight"].T + second["bias"]


def wrong_function(params, x):
    return function(params, x, eps=1e-6)


MODELS = {
    "Equinox": (lambda net: EquinoxNet(), True),
    "Equinox, another epsilon": (lambda net: EquinoxNet(1e-6), False),
    "a method of an Equinox module": (lambda net: (lambda m, x: jax.vmap(m.one)(x), EquinoxNet()), True),
    "a function": (lambda net: (function, params_of(net)), True),
    "a function, another epsilon": (lambda net: (wrong_function, params_of(net)), False),
}


@pytest.mark.full
@pytest.mark.parametrize("case", MODELS)
def test_a_model_of_any_library_is_compared(case):
    make, same = MODELS[case]
    net = TorchNet()
    comparison = parity.compare(net, make(net), X, optimizer=SGD)
    assert comparison.same is same
    gradients = [row for row in comparison.rows if row.difference.kind is parity.Kind.GRADIENT]
    assert {row.difference.name for row in gradients} >= {"layers.0.weight", "norm.bias"}
    assert "in JAX" in comparison.subject


def _sgd():
    import optax

    return (lambda parameters: torch.optim.SGD(parameters, 0.1), optax.sgd(0.1))


SGD = _sgd()


class Block(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, width, 3), torch.nn.GroupNorm(2, width)
        self.pool = torch.nn.AvgPool2d(2)
        self.lines = torch.nn.ModuleList([torch.nn.Linear(2, 5), torch.nn.Linear(5, 3)])

    def forward(self, x):
        x = self.pool(torch.relu(self.norm(self.conv(x))))
        return self.lines[1](torch.nn.functional.silu(self.lines[0](x)))


class EquinoxBlock(eqx.Module):
    """Called for one image, and its lines for one column."""

    conv: eqx.Module
    norm: eqx.Module
    pool: eqx.Module
    lines: list
    act: object = eqx.field(static=True)

    def __init__(self, eps=1e-5, size=2, act=jax.nn.relu):
        keys = jax.random.split(jax.random.key(0), 3)
        self.conv = eqx.nn.Conv2d(3, 4, 3, key=keys[0])
        self.norm = eqx.nn.GroupNorm(2, 4, eps=eps)
        self.pool = eqx.nn.AvgPool2d(2, 2) if size == 2 else eqx.nn.MaxPool2d(2, 2)
        self.lines = [eqx.nn.Linear(2, 5, key=keys[1]), eqx.nn.Linear(5, 3, key=keys[2])]
        self.act = act

    def __call__(self, x):
        x = self.pool(self.act(self.norm(self.conv(x))))
        return jax.vmap(jax.vmap(lambda column: self.lines[1](jax.nn.silu(self.lines[0](column)))))(x)


BLOCKS = {
    "an epsilon": ({"eps": 1e-2}, "norm", "norm (GroupNorm) differs although"),
    "a layer without weights": ({"size": 3}, "pool", "pool (AvgPool2d) differs although"),
    "a function between layers": ({"act": jax.nn.tanh}, "pool", "look between norm and pool"),
}


@pytest.mark.parametrize("case", BLOCKS)
def test_a_layer_of_equinox_inside_of_vmap_is_the_place_of_a_difference(case):
    settings, place, words = BLOCKS[case]
    model = (lambda net, x: jax.vmap(net)(x), EquinoxBlock(**settings))
    found = parity.compare(Block(), model, IMAGES).divergence
    assert (found.candidate, found.others) == (place, ())
    assert words in found.where
    assert [layer.candidate for layer in found.layers] == ["conv", "norm", "pool", "lines.0", "lines.1"]
    different = [layer.candidate for layer in found.layers if not layer.same]
    assert different == ([place] if "differs" in words else [])


class TurnedBlock(torch.nn.Module):
    """A norm over channels, for which torch's are last."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.LayerNorm(4)
        self.out = torch.nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.out(self.norm(self.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


class ChannelNorm(eqx.Module):
    weight: jax.Array
    bias: jax.Array
    eps: float = eqx.field(static=True)

    def __call__(self, x):
        x = (x - x.mean(0)) / jnp.sqrt(x.var(0) + self.eps)
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class ChannelsFirst(eqx.Module):
    conv: eqx.Module
    norm: eqx.Module
    out: eqx.Module

    def __init__(self, eps):
        keys = jax.random.split(jax.random.key(0), 2)
        self.conv, self.out = eqx.nn.Conv2d(3, 4, 3, key=keys[0]), eqx.nn.Conv2d(4, 4, 1, key=keys[1])
        self.norm = ChannelNorm(jnp.ones(4), jnp.zeros(4), eps)

    def __call__(self, x):
        return self.out(self.norm(self.conv(x)))


@pytest.mark.parametrize("length", [6, 9], ids=["all axes are equal", "axes differ"])
def test_torchs_permute_around_a_layer_is_no_cause(length):
    images = np.random.default_rng(0).standard_normal((2, 3, length, length))
    model = (lambda net, x: jax.vmap(net)(x), ChannelsFirst(1e-2))
    found = parity.compare(TurnedBlock(), model, images).divergence
    assert found.candidate == "out"
    assert "norm is on the way and was not replayed" in found.where
    assert ("is called with channels last" in found.where) == (length == 6)
    assert not any("permute" in cause.text for cause in found.causes), found
    assert parity.compare(TurnedBlock(), (model[0], ChannelsFirst(1e-5)), images).same


class Dropped(eqx.Module):
    linear: eqx.Module
    drop: eqx.Module

    def __init__(self, inference):
        self.linear = eqx.nn.Linear(6, 4, key=jax.random.key(0))
        self.drop = eqx.nn.Dropout(0.5, inference=inference)

    def __call__(self, x):
        return self.drop(self.linear(x), key=jax.random.key(1))


def test_a_dropout_of_equinox_draws_by_its_own_key():
    """Torch's masks do not reach it: it differs where torch does not drop, and is refused where it does."""
    net = torch.nn.Sequential(OrderedDict(linear=torch.nn.Linear(6, 4), drop=torch.nn.Dropout(0.5)))
    x = np.random.default_rng(0).standard_normal((5, 6))
    active, inactive = ((lambda net, x: jax.vmap(net)(x), Dropped(inference)) for inference in (False, True))
    assert parity.compare(net, inactive, x, training=False).same
    assert parity.compare(net, active, x, training=False).divergence.candidate == "drop"
    with pytest.raises(MaskError, match="torch dropped 1 times and Flax 0 times"):
        parity.compare(net, active, x)


def haiku_net(eps=1e-5, act=jax.nn.relu):
    def net(x):
        x = hk.LayerNorm(-1, True, True, eps=eps, name="norm")(act(hk.Linear(8, name="first")(x)))
        return hk.Linear(2, name="second")(x)

    transformed = hk.without_apply_rng(hk.transform(lambda x: jax.vmap(net)(x)))
    return transformed.apply, transformed.init(jax.random.key(0), X)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"eps": 1e-2}, "norm (LayerNorm) differs"), ({"act": jax.nn.gelu}, "look between first and norm")],
    ids=["an epsilon", "a function between layers"],
)
def test_a_layer_of_haiku_is_the_place_of_a_difference(settings, words):
    net, model = TorchNet(), haiku_net(**settings)
    mapping = parity.match(model, net, example=X)
    found = parity.compare(net, model, X, mapping=mapping).divergence
    assert words in found.where
    assert found.candidate == "norm"
    assert found.others == ()
    assert [layer.candidate for layer in found.layers] == ["first", "norm", "second"]


def test_a_function_without_layers_has_no_layers():
    found = parity.compare(TorchNet(), (wrong_function, params_of(TorchNet())), X).divergence
    assert found.layers == ()
    assert found.where.startswith("No line of JAX's code computes what torch's")


def test_the_tree_of_a_call_keeps_its_classes():
    seen = []

    def function(net, x):
        seen.append(net)
        return jax.vmap(net)(x)

    assert parity.compare(Block(), (function, EquinoxBlock(1e-2)), IMAGES).same is False
    assert {type(net) for net in seen} == {EquinoxBlock}


@pytest.mark.full
def test_haiku_is_paired_by_an_example():
    transformed = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([8, 2], name="mlp")(x)))
    model = transformed.apply, transformed.init(jax.random.key(0), X)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    mapping = parity.match(model, net, example=X)
    assert parity.compare(net, model, X, mapping=mapping).same
    net[1] = torch.nn.Tanh()
    assert not parity.compare(net, model, X, mapping=mapping).same


def test_a_convolution_of_equinox_has_a_bias_with_axes_of_one():
    conv = eqx.nn.Conv2d(3, 4, 3, key=jax.random.key(0))
    comparison = parity.compare(torch.nn.Conv2d(3, 4, 3), (lambda m, x: jax.vmap(m)(x), conv), IMAGES)
    assert comparison.same
    assert {row.difference.shape for row in comparison.rows if row.difference.name == "bias"} == {(4, 1, 1)}


@pytest.mark.full
def test_load_torch_returns_a_tree_of_the_same_structure():
    net = TorchNet()
    loaded = parity.load_torch(EquinoxNet(), net)
    assert isinstance(loaded, EquinoxNet)
    np.testing.assert_array_equal(loaded.layers[1].weight, net.layers[1].weight.detach().numpy())
    params = parity.load_torch((function, params_of(net)), net)
    np.testing.assert_allclose(function(params, X), net(torch.tensor(X)).detach().numpy(), atol=1e-6)


@pytest.mark.parametrize(("flax", "same"), [(lambda x: jax.nn.gelu(x, False), True), (jax.nn.gelu, False)])
def test_a_function_is_compared_with_a_function(flax, same):
    comparison = parity.compare(torch.nn.functional.gelu, flax, X)
    assert comparison.same is same
    assert comparison.subject.startswith("gelu in torch against")


def test_a_record_is_checked_without_torchs_model(tmp_path):
    net = TorchNet()
    parity.record(tmp_path / "net.safetensors", net, (function, params_of(net)), X)
    assert parity.check(tmp_path / "net.safetensors", (function, params_of(net))).same
    assert not parity.check(tmp_path / "net.safetensors", (wrong_function, params_of(net))).same


def test_a_class_is_refused():
    with pytest.raises(TypeError, match="Dense is a class"):
        parity.compare(torch.nn.Linear(6, 2), linen.Dense, X)
    with pytest.raises(TypeError, match="no JAX model"):
        parity.load_torch("net", torch.nn.Linear(6, 2))


class EquinoxNorm(eqx.Module):
    weight: jax.Array
    bias: jax.Array
    running_mean: jax.Array
    running_var: jax.Array

    def __init__(self):
        self.weight, self.running_var = jnp.ones(4), jnp.ones(4)
        self.bias, self.running_mean = jnp.zeros(4), jnp.zeros(4)

    def __call__(self, x, key=None):
        columns = (self.running_mean, self.running_var, self.weight, self.bias)
        mean, variance, weight, bias = (column[:, None, None] for column in columns)
        return (x - mean) / jnp.sqrt(variance + 1e-5) * weight + bias


def images_in_equinox():
    conv = eqx.nn.Conv2d(3, 4, 3, key=jax.random.key(0))
    inner = eqx.nn.Sequential([eqx.nn.Lambda(jax.nn.relu), EquinoxNorm()])
    return eqx.nn.Sequential([conv, inner])


def images_in_torch():
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(4)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    inner = torch.nn.Sequential(torch.nn.ReLU(), norm)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), inner).eval()


def test_a_sequential_of_equinox_has_torchs_names():
    net = images_in_equinox()
    assert dict(parity.match(net, images_in_torch())) == {}
    loaded = parity.load_torch(net, images_in_torch())
    assert np.array_equal(loaded.layers[1].layers[1].running_var, images_in_torch()[1][1].running_var)


def test_statistics_in_a_tree_are_buffers_as_in_torch():
    net = (lambda net, x: jax.vmap(net)(x), images_in_equinox())
    comparison = parity.compare(images_in_torch(), net, IMAGES)
    assert comparison.same, comparison
    names = [row.difference.name for row in comparison.rows if row.difference.kind.value == "gradient"]
    assert not any("running" in name for name in names)
    assert any(note.startswith("buffers, as they are in torch: layers.1.layers.1.running_mean")
               for note in comparison.notes)  # fmt: skip
    wrong = images_in_torch()
    wrong[1][1].eps = 1e-3
    assert not parity.compare(wrong, net, IMAGES).same


def test_a_counter_is_missed_where_the_statistics_are_missing():
    without = eqx.tree_at(lambda net: net.layers[1].layers[1].running_mean, images_in_equinox(), None)
    with pytest.raises(MatchError, match="num_batches_tracked"):
        parity.load_torch(without, images_in_torch())


def test_biases_with_axes_of_one_are_guessed():
    net = {"first": {"weight": jnp.zeros((4, 3, 1, 1)), "bias": jnp.zeros((4, 1, 1))}}
    found = parity.match(
        (lambda tree, x: x, net), {"conv.weight": torch.ones(4, 3, 1, 1), "conv.bias": torch.ones(4)}
    )
    assert dict(found) == {"conv": "first"}


def test_layers_of_one_name_and_other_shapes_are_guessed():
    keys = jax.random.split(jax.random.key(0), 2)
    lambdas = [eqx.nn.Lambda(jnp.abs) for _ in range(2)]
    net = eqx.nn.Sequential([lambdas[0], eqx.nn.LayerNorm(6), eqx.nn.Linear(6, 8, key=keys[0]), lambdas[1]])
    model = (lambda net, x: jax.vmap(net)(x), net)
    layers = [torch.nn.Identity(), torch.nn.Identity(), torch.nn.LayerNorm(6), torch.nn.Linear(6, 8)]
    theirs = torch.nn.Sequential(*layers)
    found = parity.match(model, theirs, example=X)
    assert dict(found) == {"2": "layers.1", "3": "layers.2"}
    assert not found.unmatched
    smaller = torch.nn.Sequential(torch.nn.Identity(), torch.nn.LayerNorm(6), torch.nn.Linear(6, 7))
    assert any("becomes (7, 6)" in line for line in parity.match(model, smaller).unmatched)


def test_arrays_beside_layers_are_guessed_by_name_and_shape():
    names = {"embeddings.token": (1, 1, 4), "embeddings.positions": (1, 5, 4), "embeddings.mask": (1, 1, 4)}
    torchs = {name: torch.ones(shape) for name, shape in names.items()}
    tree = {"start": {"token": jnp.zeros((1, 4)), "place": jnp.zeros((5, 4)), "mask": jnp.zeros((1, 4))}}
    found = parity.match((lambda tree, x: x, tree), torchs)
    assert dict(found) == {
        "embeddings.token": "start.token",
        "embeddings.mask": "start.mask",
        "embeddings.positions": "start.place",
    }
    tree["start"]["other"] = jnp.zeros((5, 4))
    assert "embeddings.positions" not in parity.match((lambda tree, x: x, tree), torchs)
