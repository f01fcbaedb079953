"""The replay of layers whose torch class has a forward of its own: not blamed for being called otherwise."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxpar import parity

torch = pytest.importorskip("torch")

RNGS = nnx.Rngs(0)
TOKENS = np.random.RandomState(0).randint(9, size=(2, 5))
MASK = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])


@pytest.fixture(autouse=True)
def same_weights_every_time():
    torch.manual_seed(0)


class Counted(torch.nn.Embedding):
    """Positions that are counted in here, from a mask, as in OPT."""

    def forward(self, mask):
        return super().forward((mask.cumsum(1) * mask).long() - 1 + 2)


class Cut(torch.nn.Embedding):
    """As many rows as there are words, as in Whisper."""

    def forward(self, tokens):
        return self.weight[: tokens.shape[1]]


class Net(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(9, 6), kind(9, 6)
        self.norm, self.act, self.fc = torch.nn.LayerNorm(6), torch.nn.GELU(), torch.nn.Linear(6, 4)

    def forward(self, tokens, mask):
        given = mask if isinstance(self.places, Counted) else tokens
        return self.fc(self.act(self.norm(self.words(tokens) + self.places(given))))


class FlaxNet(nnx.Module):
    def __init__(self, kind, epsilon=1e-5, first=2, approximate=False):
        self.words, self.places = nnx.Embed(9, 6, rngs=RNGS), nnx.Embed(9, 6, rngs=RNGS)
        self.norm = nnx.LayerNorm(6, epsilon=epsilon, use_fast_variance=False, rngs=RNGS)
        self.fc = nnx.Linear(6, 4, rngs=RNGS)
        self.kind, self.first, self.approximate = kind, first, approximate

    def __call__(self, tokens, mask):
        counted = jnp.cumsum(mask, 1) * mask - 1 + self.first
        index = counted if self.kind is Counted else jnp.arange(tokens.shape[1]) + self.first - 2
        x = self.norm(self.words(tokens) + self.places(index))
        return self.fc(nnx.gelu(x, approximate=self.approximate))


def compared(kind, **wrong):
    return parity.compare(Net(kind), FlaxNet(kind, **wrong), (TOKENS, MASK))


KINDS = pytest.mark.parametrize("kind", [Counted, Cut])


@KINDS
def test_the_twin_is_healthy(kind):
    assert compared(kind).same


@KINDS
@pytest.mark.parametrize(
    ("wrong", "place", "cause"),
    [
        ({"epsilon": 1e-3}, "norm", "epsilon=1e-05 (it acts as 0.001)"),
        ({"approximate": True}, "fc", "approximate=False (it acts as gelu(approximate=True))"),
    ],
    ids=str,
)
def test_a_layer_of_another_meaning_is_not_blamed(kind, wrong, place, cause):
    found = compared(kind, **wrong).divergence
    assert (found.candidate, found.others) == (place, ())
    assert [each.text for each in found.causes] == [cause]
    (result,) = (layer for layer in found.layers if layer.candidate == "places")
    assert not result.same
    why = f"{kind.__name__} has a forward of its own, and Flax's layer is the plain one"
    assert result.note == f"not replayed: {why}"


@KINDS
def test_what_is_wrong_in_such_a_layer_is_found_behind_it(kind):
    found = compared(kind, first=3).divergence
    assert (found.candidate, found.others) == ("norm", ())
    assert "places is on the way and was not replayed" in found.where


def test_a_position_that_is_wrong_in_such_a_layer_is_named():
    found = compared(Counted, first=3).divergence
    assert any("shifted by 1" in cause.text for cause in found.causes), found.causes


class Standardized(torch.nn.Conv2d):
    """Another forward of the same meaning in both frameworks."""

    def forward(self, x):
        w = self.weight
        mean, var = w.mean((1, 2, 3), keepdim=True), w.var((1, 2, 3), keepdim=True, unbiased=False)
        return torch.nn.functional.conv2d(x, (w - mean) / (var + 1e-5) ** 0.5, self.bias)


class FlaxStandardized(nnx.Conv):
    epsilon = 1e-5

    def __call__(self, x):
        w = self.kernel[...]
        w = (w - w.mean((0, 1, 2))) / jnp.sqrt(w.var((0, 1, 2)) + self.epsilon)
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=layout) + self.bias[...]


class Rough(FlaxStandardized):
    epsilon = 1e-2


class Picture(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Standardized(3, 4, 3), Standardized(4, 4, 3)
        self.fc = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.second(torch.tanh(self.first(x))).mean((2, 3)))


class FlaxPicture(nnx.Module):
    def __init__(self, second=FlaxStandardized, act=jnp.tanh):
        self.first, self.second = (
            kind(n, 4, (3, 3), padding="VALID", rngs=RNGS) for n, kind in [(3, FlaxStandardized), (4, second)]
        )
        self.fc, self.act = nnx.Linear(4, 2, rngs=RNGS), act

    def __call__(self, x):
        return self.fc(self.second(self.act(self.first(x))).mean((1, 2)))


@pytest.mark.full
@pytest.mark.parametrize(
    ("wrong", "place", "text"),
    [
        ({"second": Rough}, "second", "differs although it is given the same inputs"),
        ({"act": nnx.relu}, "second", "look between first and second"),
    ],
    ids=["layer", "activation"],
)
def test_a_layer_that_means_the_same_in_both_is_replayed(wrong, place, text):
    x = np.random.RandomState(1).randn(2, 3, 7, 7)
    assert parity.compare(Picture(), FlaxPicture(), x, layout=("channels_last", "same")).same
    found = parity.compare(Picture(), FlaxPicture(**wrong), x, layout=("channels_last", "same")).divergence
    assert (found.candidate, found.others) == (place, ())
    assert text in found.where


class ChannelsFirst(torch.nn.Module):
    """ConvNeXt's own LayerNorm, for [B, C, H, W]."""

    def __init__(self, channels):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(channels))
        self.bias = torch.nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        x = x - x.mean(1, keepdim=True)
        x = x / (x.pow(2).mean(1, keepdim=True) + 1e-6).sqrt()
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class Stem(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = torch.nn.Conv2d(3, 4, 1), ChannelsFirst(4), torch.nn.Conv2d(4, 2, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.norm(self.conv(x))))


class FlaxStem(nnx.Module):
    def __init__(self, epsilon=1e-6, function=jnp.tanh):
        self.conv, self.out = nnx.Conv(3, 4, (1, 1), rngs=RNGS), nnx.Conv(4, 2, (1, 1), rngs=RNGS)
        self.norm = nnx.LayerNorm(4, epsilon=epsilon, use_fast_variance=False, rngs=RNGS)
        self.function = function

    def __call__(self, x):
        return self.out(self.function(self.norm(self.conv(x))))


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("size", [(4, 4), (5, 6)], ids=["axes of one length", "axes of their own"])
@pytest.mark.parametrize(
    ("wrong", "place", "cause"),
    [
        ({"epsilon": 1e-3}, "norm", "epsilon=1e-06 (it acts as 0.001)"),
        ({"function": nnx.relu}, "out", "tanh (it acts as relu)"),
    ],
    ids=["epsilon", "activation"],
)
def test_a_layer_of_the_users_own_may_have_its_channels_last(wrong, place, cause, size):
    x = np.random.RandomState(0).randn(2, 3, *size)
    assert parity.compare(Stem(), FlaxStem(), x, layout="channels_last").same
    found = parity.compare(Stem(), FlaxStem(**wrong), x, layout="channels_last").divergence
    assert (found.candidate, found.others) == (place, ())
    assert cause in [each.text for each in found.causes]


class Scaled(torch.nn.Embedding):
    """Scaled in here, as in XGLM."""

    def forward(self, tokens):
        return super().forward(tokens) * 4.0


class ScaledNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm, self.fc = Scaled(9, 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, 4)

    def forward(self, tokens):
        return self.fc(self.norm(self.words(tokens)).tanh())


class FlaxScaledNet(nnx.Module):
    def __init__(self, scale=4.0, function=jnp.tanh):
        self.words, self.fc = nnx.Embed(9, 6, rngs=RNGS), nnx.Linear(6, 4, rngs=RNGS)
        self.norm = nnx.LayerNorm(6, epsilon=1e-5, use_fast_variance=False, rngs=RNGS)
        self.scale, self.function = scale, function

    def __call__(self, tokens):
        return self.fc(self.function(self.norm(self.words(tokens) * self.scale)))


@pytest.mark.full
@pytest.mark.parametrize(
    ("wrong", "place", "cause"),
    [
        ({"function": nnx.relu}, "fc", "tanh (it acts as relu)"),
        ({"scale": 1.0}, "norm", "the scale is 4 (it is left out)"),
    ],
    ids=["behind it", "the scale"],
)
def test_what_a_torch_layer_does_more_than_flaxs_may_be_done_behind_it(wrong, place, cause):
    assert parity.compare(ScaledNet(), FlaxScaledNet(), TOKENS).same
    found = parity.compare(ScaledNet(), FlaxScaledNet(**wrong), TOKENS).divergence
    assert (found.candidate, found.others) == (place, ())
    assert cause in [each.text for each in found.causes]


class NormAct(torch.nn.GroupNorm):
    """A norm with its activation, as many libraries of torch have it."""

    def forward(self, x):
        return torch.relu(super().forward(x))


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(3, 8), NormAct(2, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


class FlaxNormed(nnx.Module):
    """The same with the activation outside of the norm."""

    def __init__(self, epsilon=1e-5, act=nnx.relu):
        self.first, self.last = nnx.Linear(3, 8, rngs=RNGS), nnx.Linear(8, 4, rngs=RNGS)
        self.norm = nnx.GroupNorm(8, 2, epsilon=epsilon, use_fast_variance=False, rngs=RNGS)
        self.act = act

    def __call__(self, x):
        return self.last(self.act(self.norm(self.first(x))))


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ({"epsilon": 1e-6}, "epsilon=1e-05 (it acts as 1e-06)"),
        ({"epsilon": 1e-3}, "epsilon=1e-05 (it acts as 0.001)"),
        ({"act": nnx.gelu}, "relu (it acts as gelu(approximate=True))"),
        ({"act": lambda x: x}, "relu is done (it is left out)"),
    ],
    ids=["small epsilon", "large epsilon", "GELU", "nothing"],
)
def test_an_activation_inside_of_torchs_norm_is_not_missed_there(wrong, cause):
    x = np.random.RandomState(0).randn(5, 3)
    assert parity.compare(Normed(), FlaxNormed(), x).same
    divergence = parity.compare(Normed(), FlaxNormed(**wrong), x).divergence
    assert (divergence.candidate, divergence.others) == ("last", ())
    assert cause in [named.text for named in divergence.causes]


class NormedImages(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Conv2d(3, 8, 1), NormAct(2, 8), torch.nn.Conv2d(8, 4, 1)

    def forward(self, x):
        return self.last(self.norm(self.first(x))).mean((2, 3))


class FlaxNormedImages(FlaxNormed):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.first, self.last = (nnx.Conv(n, out, (1, 1), rngs=RNGS) for n, out in ((3, 8), (8, 4)))

    def __call__(self, x):
        return super().__call__(x).mean((1, 2))


def test_an_activation_inside_of_a_norm_on_images():
    x, layout = np.random.RandomState(0).randn(2, 3, 5, 4), ("channels_last", "same")
    assert parity.compare(NormedImages(), FlaxNormedImages(), x, layout=layout).same
    wrong = FlaxNormedImages(epsilon=1e-3)
    divergence = parity.compare(NormedImages(), wrong, x, layout=layout).divergence
    assert (divergence.candidate, divergence.others) == ("last", ())
    assert "epsilon=1e-05 (it acts as 0.001)" in [named.text for named in divergence.causes]
