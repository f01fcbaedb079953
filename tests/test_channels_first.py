"""jaxpar.nn.channels_first: torch's layers and functions in torch's layout, against torch in float64."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from comparing import assert_equal_numbers
from flax import nnx

import jaxpar
import jaxpar.nn.channels_first as ours
import jaxpar.nn.channels_first.functional as F
from jaxpar import parity

LINE, IMAGE, VOLUME = (2, 4, 9), (2, 4, 8, 9), (2, 4, 6, 5, 7)
LAYERS = [
    ("Conv1d", (4, 6, 3), {"padding": 1}, LINE),
    ("Conv2d", (4, 6, 3), {"stride": 2, "padding": 1, "groups": 2}, IMAGE),
    ("Conv2d", (4, 6, (3, 1)), {"padding": "same", "bias": False, "padding_mode": "reflect"}, IMAGE),
    ("Conv3d", (4, 6, 3), {"dilation": 2}, VOLUME),
    ("Conv3d", (4, 6, (3, 2, 1)), {"stride": (2, 1, 3), "padding": (2, 1, 0), "groups": 2}, VOLUME),
    ("ConvTranspose1d", (4, 6, 3), {"stride": 2, "output_padding": 1}, LINE),
    ("ConvTranspose2d", (4, 6, 3), {"stride": 2, "padding": 1, "groups": 2}, IMAGE),
    ("ConvTranspose3d", (4, 6, 2), {}, VOLUME),
    ("BatchNorm1d", (4,), {}, LINE),
    ("BatchNorm1d", (4,), {"momentum": None}, (5, 4)),
    ("BatchNorm2d", (4,), {"affine": False}, IMAGE),
    ("BatchNorm3d", (4,), {}, VOLUME),
    ("InstanceNorm1d", (4,), {"affine": True}, LINE),
    ("InstanceNorm2d", (4,), {"track_running_stats": True}, IMAGE),
    ("InstanceNorm3d", (4,), {}, VOLUME),
    ("GroupNorm", (2, 4), {}, IMAGE),
    ("LocalResponseNorm", (3,), {}, IMAGE),
    ("LayerNorm", ((8, 9),), {}, IMAGE),
    ("PReLU", (4,), {}, IMAGE),
    ("MaxPool1d", (3,), {"stride": 2, "padding": 1}, LINE),
    ("MaxPool2d", (3, 2), {"padding": 1, "ceil_mode": True}, IMAGE),
    ("MaxPool3d", (2,), {}, VOLUME),
    ("AvgPool1d", (3,), {"padding": 1}, LINE),
    ("AvgPool2d", (3, 2), {"padding": 1, "count_include_pad": False}, IMAGE),
    ("AvgPool3d", (2,), {}, VOLUME),
    ("AdaptiveAvgPool2d", ((3, 4),), {}, IMAGE),
    ("AdaptiveMaxPool1d", (4,), {}, LINE),
    ("LPPool2d", (2, 3), {}, IMAGE),
    ("ReflectionPad2d", ((1, 2, 3, 0),), {}, IMAGE),
    ("ConstantPad1d", ((1, 2), 0.5), {}, LINE),
    ("CircularPad3d", (1,), {}, VOLUME),
    ("ZeroPad2d", (1,), {}, IMAGE),
    ("ReplicationPad1d", (2,), {}, LINE),
    ("Upsample", (), {"scale_factor": 2, "mode": "bilinear"}, IMAGE),
    ("PixelShuffle", (2,), {}, IMAGE),
    ("PixelUnshuffle", (2,), {}, (2, 4, 8, 6)),
    ("ChannelShuffle", (2,), {}, IMAGE),
    ("Unfold", (3,), {"padding": 1}, IMAGE),
    ("UpsamplingNearest2d", (), {"scale_factor": 2}, IMAGE),
    ("UpsamplingBilinear2d", ((5, 13),), {}, IMAGE),
    ("Softmax2d", (), {}, IMAGE),
    ("Softmin", (1,), {}, IMAGE),
    ("FeatureAlphaDropout", (0.0,), {}, IMAGE),
    ("MaxUnpool1d", (2,), {}, LINE),
    ("MaxUnpool2d", (2, (2, 2)), {}, IMAGE),
    ("MaxUnpool2d", ((2, 2),), {}, IMAGE[1:]),
    ("MaxUnpool3d", (2,), {}, VOLUME),
    ("Flatten", (), {}, IMAGE),
    ("Linear", (9, 5), {}, IMAGE),
    ("ReLU", (), {"inplace": False}, IMAGE),
    ("ReLU6", (False,), {}, IMAGE),
    ("LeakyReLU", (0.2, False), {}, IMAGE),
    ("GELU", (), {"approximate": "tanh"}, IMAGE),
    ("Softmax", (), {"dim": 1}, IMAGE),
    ("LogSoftmax", (), {"dim": 1}, IMAGE),
    ("Softplus", (), {"beta": 2}, IMAGE),
    ("GLU", (1,), {}, IMAGE),
    ("ELU", (0.7,), {}, IMAGE),
]
FUNCTIONS = [
    ("relu", {}, IMAGE),
    ("sigmoid", {}, IMAGE),
    ("silu", {}, IMAGE),
    ("tanh", {}, IMAGE),
    ("softmax", {"dim": 1}, IMAGE),
    ("log_softmax", {"dim": -1}, IMAGE),
    ("max_pool2d", {"kernel_size": 2}, IMAGE),
    ("interpolate", {"size": (5, 4), "mode": "bicubic"}, IMAGE),
]
CLASSES = [(5,), (3, 5), (3, 5, 4), (3, 5, 2, 4)]


def data(shape, seed=0):
    return np.random.RandomState(seed).randn(*shape)


def positions(name, shape):
    """The further input of a MaxUnpool of size 2: where each number goes in the plane of its channel."""
    axes = int(name[-2]) if name.startswith("MaxUnpool") else 0
    volume = math.prod(shape[-axes:]) * 2**axes
    return [np.arange(math.prod(shape)).reshape(shape) % volume] if axes else []


def pair_of(name, args, options):
    """torch's layer and ours, with the same weights."""
    theirs = getattr(torch.nn, name)(*args, **options).double()
    for i, parameter in enumerate(theirs.parameters()):
        parameter.data += 0.1 * torch.tensor(data(parameter.shape, 7 + i))
    mine = getattr(ours, name)(*args, **options, **({"rngs": nnx.Rngs(0)} if takes_rngs(name) else {}))
    return theirs, parity.load_torch(jaxpar.to(mine, dtype=jnp.float64), theirs)


def takes_rngs(name):
    return name.startswith(("Conv1", "Conv2", "Conv3", "ConvT", "Linear", "Feat"))


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("name", "args", "options", "shape"), LAYERS)
def test_a_layer_gives_torchs_outputs_gradients_and_state(name, args, options, shape):
    theirs, mine = pair_of(name, args, options)
    x, there = data(shape), torch.tensor(data(shape), requires_grad=True)
    more = positions(name, shape)
    y = theirs(there, *map(torch.tensor, more))
    weight = data(tuple(y.shape), 3)
    (y * torch.tensor(weight)).sum().backward()
    found = jax.grad(lambda x: (nnx.clone(mine)(x, *more) * weight).sum())(jnp.asarray(x))
    assert_equal_numbers("dx", found, there.grad.numpy())
    assert_equal_numbers("y", mine(jnp.asarray(x), *more), y.detach().numpy())
    state = parity.to_torch(mine)
    for key, tensor in theirs.state_dict().items():
        assert_equal_numbers(key, state[key].numpy(), tensor.numpy())


@pytest.mark.parametrize(("name", "options", "shape"), FUNCTIONS)
def test_a_function_gives_torchs_outputs_and_gradients(name, options, shape):
    x, there = data(shape), torch.tensor(data(shape), requires_grad=True)
    y = getattr(torch.nn.functional, name)(there, **options)
    weight = data(tuple(y.shape), 3)
    (y * torch.tensor(weight)).sum().backward()
    call = getattr(F, name)
    assert_equal_numbers("y", call(jnp.asarray(x), **options), y.detach().numpy())
    assert_equal_numbers(
        "dx", jax.grad(lambda x: (call(x, **options) * weight).sum())(jnp.asarray(x)), there.grad.numpy()
    )


@pytest.mark.parametrize("shape", CLASSES)
@pytest.mark.parametrize("loss", ["cross_entropy", "nll_loss", "probabilities"])
def test_the_classes_are_axis_1(shape, loss):
    x, probabilities = data(shape), np.abs(data(shape, 1))
    target = np.random.RandomState(2).randint(0, 5, (shape[0], *shape[2:]) if len(shape) > 1 else ())
    target, name = (probabilities, "cross_entropy") if loss == "probabilities" else (target, loss)
    expected = getattr(torch.nn.functional, name)(torch.tensor(x), torch.tensor(target))
    assert_equal_numbers(name, getattr(F, name)(jnp.asarray(x), target), expected.numpy())


def test_channels_at_the_end_are_seen():
    """Planted: what jaxpar.nn computes of the same numbers is not what torch computes."""
    x = jnp.asarray(data((2, 4, 4, 4)))
    last = jaxpar.nn.functional.max_pool(x, 2)
    with pytest.raises(AssertionError):
        assert_equal_numbers("y", last, F.max_pool2d(x, 2))


def test_children_come_in_the_order_in_which_they_were_set():
    rngs = nnx.Rngs(0)

    class Net(nnx.Module):
        def __init__(self):
            self.second, self.first = ours.Linear(2, 2, rngs=rngs), ours.ReLU()
            self.again = self.second
            self.width, self.nothing = 2, None

    act, shared = ours.ReLU(), torch.nn.ReLU()
    nested = torch.nn.Sequential(torch.nn.Sequential(shared), shared, torch.nn.Tanh())

    class Twin(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.second, self.first = torch.nn.Linear(2, 2), torch.nn.ReLU()
            self.again = self.second
            self.width, self.nothing = 2, None

    for ported, theirs in (
        (Net(), Twin()),
        (ours.Sequential(ours.ReLU(), ours.Tanh()), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh())),
        (ours.Sequential(ours.Sequential(act), act, ours.Tanh()), nested),
    ):
        assert [name for name, _ in ours.named_children(ported)] == [n for n, _ in theirs.named_children()]
        assert [name for name, _ in ours.named_modules(ported)] == [n for n, _ in theirs.named_modules()]
        assert [type(x).__name__ for x in ours.modules(ported)][1:] == [
            type(x).__name__ for x in theirs.modules()
        ][1:]
        said = [type(each).__name__ for each in ours.children(ported)]
        assert said == [type(each).__name__ for each in theirs.children()]


@pytest.mark.parametrize("base", ["Sequential", "ModuleList", "ModuleDict"])
def test_a_module_that_is_an_attribute_of_a_container_is_an_element(base):
    def made(kind, relu, tanh):
        def __init__(self):
            kind.__init__(self)
            self.first, self.width = relu(), 2
            self.add_module("second", tanh())
            self.first = tanh()

        return type("Net", (kind,), {"__init__": __init__})()

    ported = made(getattr(ours, base), ours.ReLU, ours.Tanh)
    theirs = made(getattr(torch.nn, base), torch.nn.ReLU, torch.nn.Tanh)
    assert list(ported.names) == [name for name, _ in theirs.named_children()] == ["first", "second"]
    again = nnx.merge(*nnx.split(ported))
    assert [type(each).__name__ for each in again.children()] == ["Tanh", "Tanh"]


def row(library, kind, *names):
    layers = [getattr(library, name)() for name in names]
    return getattr(library, kind)(*(layers if kind == "Sequential" else [layers]))


@pytest.mark.parametrize("kind", ["Sequential", "ModuleList"])
def test_rows_of_layers_are_added(kind):
    said = []
    for library in (ours, torch.nn):
        first, second = row(library, kind, "ReLU", "Tanh"), row(library, kind, "SiLU")
        both = first + second
        second += first
        for position in (0, 2):
            both.insert(position, library.ELU())
        said.append([[(n, type(x).__name__) for n, x in net.named_children()] for net in (both, second)])
    assert said[0] == said[1]


def test_volumes_are_the_same_in_float32():
    """In float64 they are computed plane by plane."""
    x, weight = jnp.asarray(data(VOLUME)), jnp.asarray(data((6, 2, 3, 2, 1), 1))
    options = {"stride": (2, 1, 3), "padding": (2, 1, 0), "dilation": (2, 1, 1), "groups": 2}
    exact = F.conv3d(x, weight, **options)
    rounded = F.conv3d(x.astype(jnp.float32), weight.astype(jnp.float32), **options)
    assert (exact.dtype, rounded.dtype) == (jnp.float64, jnp.float32)
    np.testing.assert_allclose(rounded, exact, atol=1e-4)


def test_attention_with_torchs_weights():
    draw = np.random.RandomState(0).randn
    x, (rows, out, more) = [draw(3, 2, 4) for _ in range(3)], (draw(12, 4), draw(4, 4), draw(2, 1, 1, 4))
    options = [rows, draw(12), *more, True, 0.0, out, draw(4), False]
    passed_on = {"attn_mask": draw(3, 3), "average_attn_weights": False}
    want = torch.nn.functional.multi_head_attention_forward(
        *map(torch.tensor, x),
        *(4, 2),
        *(torch.tensor(o) if isinstance(o, np.ndarray) else o for o in options),
        **{name: torch.tensor(o) if isinstance(o, np.ndarray) else o for name, o in passed_on.items()},
    )
    for result, theirs in zip(
        F.multi_head_attention_forward(*x, 4, 2, *options, **passed_on), want, strict=True
    ):
        assert_equal_numbers("attention", result, theirs, 1e-12)
