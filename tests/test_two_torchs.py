"""parity compares two torch models: verdict, place and cause, and neither model is changed."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn
from torch.nn import functional as F

from jaxpar import parity
from jaxpar.errors import MaskError, MatchError
from jaxpar.parity.recorder import record as record_trace

VECTORS = np.random.RandomState(0).randn(6, 5, 8).astype(np.float32)
IMAGES = np.random.RandomState(1).randn(4, 3, 8, 8).astype(np.float32)


class Mlp(nn.Module):
    def __init__(self, activation=F.gelu, order=1, eps=1e-5):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16, eps), nn.Linear(16, 8)
        self.activation, self.order = activation, order

    def forward(self, x):
        h = self.up(x)
        h = self.norm(self.activation(h)) if self.order else self.activation(self.norm(h))
        return x + self.down(h)


class MatrixMlp(nn.Module):
    """The same by products of matrices."""

    def __init__(self, eps=1e-5):
        super().__init__()
        self.weights = nn.ParameterList([torch.zeros(16, 8), torch.zeros(8, 16)])
        self.biases = nn.ParameterList([torch.zeros(16), torch.zeros(8)])
        self.scale, self.shift, self.eps = nn.Parameter(torch.ones(16)), nn.Parameter(torch.zeros(16)), eps

    def forward(self, x):
        h = x @ self.weights[0].T + self.biases[0]
        h = 0.5 * h * (1 + torch.erf(h / 2**0.5))
        h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, keepdim=True, unbiased=False) + self.eps).sqrt()
        return x + (h * self.scale + self.shift) @ self.weights[1].T + self.biases[1]


MATRICES = {
    "up.weight": "weights.0",
    "up.bias": "biases.0",
    "norm.weight": "scale",
    "norm.bias": "shift",
    "down.weight": "weights.1",
    "down.bias": "biases.1",
}


class Conv(nn.Module):
    def __init__(self, momentum=0.1, eps=1e-5, pool=F.max_pool2d, rate=0.0):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8, eps, momentum)
        self.drop, self.mix, self.fc = nn.Dropout(rate), nn.Conv2d(8, 8, 1), nn.Linear(128, 5)
        self.pool = pool

    def forward(self, x):
        x = self.drop(F.relu(self.norm(self.conv(x))))
        return self.fc(self.pool(self.mix(x), 2).flatten(1))


class OwnBatchNorm(nn.BatchNorm2d):
    """A BatchNorm by hand, whose running variance is the batch's, with or without Bessel's correction."""

    unbiased = True

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(x.var((0, 2, 3), unbiased=self.unbiased), self.momentum)
            self.num_batches_tracked.add_(1)
        x = (x - mean[:, None, None]) * (var + self.eps).rsqrt()[:, None, None]
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class BiasedBatchNorm(OwnBatchNorm):
    unbiased = False


class PixelConv(Conv):
    """A convolution of single pixels is a Linear, and the dropout's mask is of a transposed image."""

    def __init__(self, norm=OwnBatchNorm, **options):
        super().__init__(**options)
        self.mix, self.norm = nn.Linear(8, 8), norm(8)

    def forward(self, x):
        # In memory with the channels last, so that torch would draw other masks.
        x = F.relu(self.norm(self.conv(x))).contiguous(memory_format=torch.channels_last)
        x = self.mix(self.drop(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.fc(self.pool(x, 2).flatten(1))


class Attention(nn.Module):
    def __init__(self, rate=0.0):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=rate, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = self.norm(x)
        return self.head(x + self.attention(h, h, h, need_weights=False)[0])


class OwnAttention(nn.Module):
    def __init__(self, rate=0.0, scale=0.5, residual=True):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.rate, self.scale, self.residual = rate, scale, residual

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (layer(h).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = F.dropout((q @ k.mT * self.scale).softmax(-1), self.rate, self.training)
        out = self.out((weights @ v).transpose(1, 2).flatten(2))
        return self.head((x if self.residual else h) + out)


PROJECTIONS = {
    "attention.in_proj_weight": parity.split(0, ("q.weight", "k.weight", "v.weight")),
    "attention.in_proj_bias": parity.split(0, ("q.bias", "k.bias", "v.bias")),
    "attention.out_proj": "out",
}


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(8, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(self.lstm(x)[0])


class OwnLstm(nn.Module):
    def __init__(self, gates=(0, 1, 2, 3)):
        super().__init__()
        self.w, self.u = nn.Parameter(torch.zeros(16, 8)), nn.Parameter(torch.zeros(16, 4))
        self.b, self.c = nn.Parameter(torch.zeros(16)), nn.Parameter(torch.zeros(16))
        self.fc, self.gates = nn.Linear(4, 3), gates

    def forward(self, x):
        h = c = x.new_zeros(len(x), 4)
        outputs = []
        for step in x.unbind(1):
            parts = (step @ self.w.T + self.b + h @ self.u.T + self.c).chunk(4, -1)
            i, f, g, o = (parts[gate] for gate in self.gates)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return self.fc(torch.stack(outputs, 1))


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.GRU(8, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(self.rnn(x)[0])


class OwnGru(nn.Module):
    def __init__(self, gates=(0, 1, 2)):
        super().__init__()
        self.w, self.u = nn.Parameter(torch.zeros(12, 8)), nn.Parameter(torch.zeros(12, 4))
        self.b, self.c = nn.Parameter(torch.zeros(12)), nn.Parameter(torch.zeros(12))
        self.fc, self.gates = nn.Linear(4, 3), gates

    def forward(self, x):
        h = x.new_zeros(len(x), 4)
        outputs = []
        for step in x.unbind(1):
            inner, outer = (
                (y @ w.T + b).chunk(3, -1) for y, w, b in ((step, self.w, self.b), (h, self.u, self.c))
            )
            (ir, iz, candidate), (hr, hz, hn) = (
                [parts[gate] for gate in self.gates] for parts in (inner, outer)
            )
            z = (iz + hz).sigmoid()
            h = (1 - z) * (candidate + (ir + hr).sigmoid() * hn).tanh() + z * h
            outputs.append(h)
        return self.fc(torch.stack(outputs, 1))


WEIGHTS = {
    "lstm.weight_ih_l0": "w",
    "lstm.weight_hh_l0": "u",
    "lstm.bias_ih_l0": "b",
    "lstm.bias_hh_l0": "c",
}
OF_GRU = {name.replace("lstm", "rnn"): own for name, own in WEIGHTS.items()}


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-2)


PAIRS = {
    "mlp": (Mlp, Mlp, VECTORS, {}),
    "matrix mlp": (Mlp, MatrixMlp, VECTORS, MATRICES),
    "conv": (lambda: Conv(rate=0.4), lambda: Conv(rate=0.4), IMAGES, {}),
    "pixels": (lambda: Conv(rate=0.4), lambda: PixelConv(rate=0.4), IMAGES, {}),
    "attention": (lambda: Attention(0.3), lambda: OwnAttention(0.3), VECTORS, PROJECTIONS),
    "lstm": (Lstm, OwnLstm, VECTORS, WEIGHTS),
    "gru": (Gru, OwnGru, VECTORS, OF_GRU),
}

# The place, and a part of the cause.
NO_BESSEL = "the running variance is the unbiased one"
NO_RESIDUAL = "(one is what norm returns)"
WRONG = {
    "eps": (Mlp, lambda: Mlp(eps=1e-3), VECTORS, {}, "norm", "epsilon=1e-05 (it acts as 0.001)"),
    "activation": (Mlp, lambda: Mlp(F.silu), VECTORS, {}, "norm", "it acts as silu"),
    "order": (Mlp, lambda: Mlp(order=0), VECTORS, {}, "norm", "no activation"),
    "matrix": (Mlp, lambda: MatrixMlp(1e-2), VECTORS, MATRICES, "", "epsilon=1e-05 (it acts as 0.01)"),
    "momentum": (Conv, lambda: Conv(0.01), IMAGES, {}, "norm", "momentum=0.1 (it acts as 0.01)"),
    "pooling": (Conv, lambda: Conv(pool=F.avg_pool2d), IMAGES, {}, "fc", "it acts as avg_pool2d"),
    "rate": (lambda: Conv(rate=0.3), lambda: Conv(rate=0.5), IMAGES, {}, "drop", "rate=0.3 (it acts as 0.5)"),
    "biased": (Conv, lambda: PixelConv(BiasedBatchNorm), IMAGES, {}, "norm", NO_BESSEL),
    "gates": (Lstm, lambda: OwnLstm((0, 1, 3, 2)), VECTORS, WEIGHTS, "fc", "order (0, 1, 3, 2)"),
    "gates of three": (Gru, lambda: OwnGru((1, 0, 2)), VECTORS, OF_GRU, "fc", "order (1, 0, 2)"),
    "residual": (Attention, lambda: OwnAttention(residual=False), VECTORS, PROJECTIONS, "head", NO_RESIDUAL),
    "scale": (Attention, lambda: OwnAttention(scale=1.0), VECTORS, PROJECTIONS, "head", ""),
}


def seeded(build):
    torch.manual_seed(0)
    return build()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PAIRS)
def test_rewritten_models_are_the_same(name):
    first, second, x, mapping = PAIRS[name]
    models = seeded(first), second()
    trained = parity.compare(*models, x, mapping=mapping, optimizer=adamw)
    assert trained.same, trained
    assert trained.steps == 2
    assert not [row for row in trained.rows if row.limit > 1e-10 and row.outcome.value == "same"]
    assert parity.compare(*models, x, mapping=mapping, level="numeric").same


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_twins_have_a_place_and_a_cause(name):
    first, second, x, mapping, place, cause = WRONG[name]
    compared = parity.compare(seeded(first), second(), x, mapping=mapping)
    assert not compared.same
    causes = [text.text for text in compared.divergence.causes]
    assert compared.divergence.reference == place, compared
    assert (cause in str(causes)) if cause else not causes, compared
    assert "Flax" not in str(compared)
    assert "JAX" not in str(compared)
    assert not parity.compare(seeded(first), second(), x, mapping=mapping, level="numeric", search=None).same


def test_optimizers_and_losses_of_their_own():
    def decayed(parameters):
        return torch.optim.AdamW(parameters, 1e-2, weight_decay=0.1)

    def summed(outputs, labels):
        return F.cross_entropy(outputs, labels, reduction="sum")

    models = seeded(lambda: nn.Sequential(nn.Linear(8, 3))), nn.Sequential(nn.Linear(8, 3))
    both = {"targets": np.arange(6) % 3, "loss": F.cross_entropy}
    assert parity.compare(*models, VECTORS[:, 0], optimizer=(adamw, adamw), **both).same
    compared = parity.compare(*models, VECTORS[:, 0], optimizer=(adamw, decayed), **both)
    assert "weight_decay=0.01 (it acts as 0.1)" in str(compared)
    both["loss"] = F.cross_entropy, summed
    compared = parity.compare(*models, VECTORS[:, 0], **both)
    assert "reduction" in str(compared.divergence.causes)


def test_functions():
    def by_hand(x):
        return 0.5 * x * (1 + torch.erf(x / 2**0.5))

    same = parity.compare(F.gelu, by_hand, VECTORS)
    assert same.same
    assert same.subject == "gelu in torch against by_hand in torch"
    different = parity.compare(by_hand, lambda x: F.gelu(x, approximate="tanh"), VECTORS)
    assert not different.same

    def noisy(x):
        return torch.as_tensor(x) + torch.rand(8)

    # Trying a function draws nothing for the user.
    before = torch.get_rng_state()
    parity.compare(noisy, noisy, VECTORS)
    assert torch.equal(torch.get_rng_state(), before)
    # A function that runs in JAX is JAX's.
    assert parity.compare(lambda x: x + x, lambda x: 2 * x, VECTORS).subject.endswith("in JAX")
    assert not parity.compare(F.gelu, jax.nn.gelu, VECTORS).same


@pytest.mark.parametrize("models", [(jax.nn.gelu, jax.nn.relu), (nnx.Dropout(0.1), nnx.Dropout(0.1))])
def test_two_jax_models_are_refused(models):
    with pytest.raises(TypeError, match=r"torch as its reference.*parity\.bisect"):
        parity.compare(*models, VECTORS)


def test_neither_model_is_changed():
    models = seeded(lambda: Conv(rate=0.3)), PixelConv(rate=0.3).eval()
    before = [{name: x.clone() for name, x in model.state_dict().items()} for model in models]
    generator = torch.get_rng_state()
    parity.compare(*models, IMAGES, optimizer=adamw)
    parity.compare(*models, IMAGES, search="quick", training=True)
    for model, tensors in zip(models, before, strict=True):
        assert all(torch.equal(x, tensors[name]) for name, x in model.state_dict().items())
        assert all(not layer._forward_hooks and not layer._forward_pre_hooks for layer in model.modules())
        assert all("forward" not in vars(layer) for layer in model.modules())
        assert all(parameter.grad is None for parameter in model.parameters())
    assert models[0].training
    assert not models[1].training
    assert torch.equal(torch.get_rng_state(), generator)


def test_own_weights_are_compared():
    models = seeded(Mlp), Mlp()
    compared = parity.compare(*models, VECTORS, weights="own")
    assert not compared.same
    assert "weights of" in compared.divergence.where
    models[1].load_state_dict(models[0].state_dict())
    assert parity.compare(*models, VECTORS, weights="own").same
    assert parity.compare(seeded(Mlp), Mlp(eps=1e-3), VECTORS, shake=True).notes[0].startswith("all weights")


def test_masks_must_fit():
    with pytest.raises(MaskError, match="the first model dropped 1 times and the second 0 times"):
        parity.compare(Conv(rate=0.3), Conv(), IMAGES)
    with pytest.raises(MaskError, match="draws for dropout number 1, and the first drew only 0"):
        parity.compare(Conv(), Conv(rate=0.3), IMAGES)

    class Early(Conv):
        def forward(self, x):
            x = F.relu(self.norm(self.conv(self.drop(x))))
            return self.fc(self.pool(self.mix(x), 2).flatten(1))

    with pytest.raises(
        MaskError, match=r"of shape \(4, 3, 8, 8\) in the second model, and of \(4, 8, 8, 8\)"
    ):
        parity.compare(Conv(rate=0.3), Early(rate=0.3), IMAGES)


def test_other_names():
    with pytest.raises(MatchError, match="of the second model's 6 leaves get nothing") as error:
        parity.compare(Mlp(), MatrixMlp(), VECTORS)
    assert (
        "Flax"
        not in str(error.value).replace("flax.path", "").replace("ignore_flax", "").split("compare was")[0]
    )

    class Renamed(nn.Module):
        def __init__(self):
            super().__init__()
            self.second, self.first, self.scale = nn.Linear(16, 8), nn.Linear(8, 16), nn.LayerNorm(16)

        def forward(self, x):
            return x + self.second(self.scale(F.gelu(self.first(x))))

    mapping = parity.match(Renamed(), seeded(Mlp), example=VECTORS)
    assert dict(mapping) == {"up": "first", "norm": "scale", "down": "second"}
    compared = parity.compare(seeded(Mlp), Renamed(), VECTORS, mapping=mapping)
    assert compared.same
    assert "outputs agree" in str(compared)

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.fc = nn.LSTMCell(8, 4), nn.Linear(4, 3)

        def forward(self, x):
            states = [None]
            for step in x.unbind(1):
                states.append(self.cell(step, states[-1]))
            return self.fc(torch.stack([h for h, _ in states[1:]], 1))

    mapping = parity.match(Cell(), seeded(Lstm))
    assert dict(mapping) == {"lstm": "cell"}
    assert parity.compare(seeded(Lstm), Cell(), VECTORS, mapping=mapping).same


@pytest.mark.parametrize("level", ["numeric", "as it runs", "trajectory"])
def test_levels(level):
    options = {"level": level, "optimizer": adamw if level == "trajectory" else None}
    assert parity.compare(seeded(Conv), PixelConv(), IMAGES, **options).same
    assert not parity.compare(seeded(Conv), Conv(eps=1e-2), IMAGES, **options).same


def test_layouts_and_outputs():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)

        def forward(self, x):
            return {"more": x, "image": self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)}

    first = seeded(lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1)))
    options = {"layout": "channels_last", "outputs": {"": "image"}, "mapping": {"0": "conv"}}
    assert parity.compare(first, Last(), IMAGES, **options).same


@pytest.mark.full
def test_records_and_traces(tmp_path):
    path, first, second = tmp_path / "mlp.safetensors", seeded(Mlp), MatrixMlp()
    parity.record(path, first, second, VECTORS, mapping=MATRICES, optimizer=adamw)
    assert parity.check(path, second, optimizer=adamw).same
    assert not parity.check(path, MatrixMlp(1e-3), optimizer=adamw).same

    trace = record_trace(tmp_path / "trace", seeded(Conv), IMAGES)
    assert parity.against(trace, PixelConv()).same
    wrong = parity.against(trace, PixelConv(BiasedBatchNorm))
    assert wrong.divergence.reference == "norm"
    assert NO_BESSEL in str(wrong.divergence.causes)
    assert "Flax" not in str(wrong)


def test_tied_weights_and_frozen_ones():
    class Tied(nn.Module):
        def __init__(self, scale=1.0):
            super().__init__()
            self.table, self.head = nn.Embedding(7, 8), nn.Linear(8, 7, bias=False)
            self.head.weight, self.scale = self.table.weight, scale

        def forward(self, x):
            return self.head(self.table(x).sin() * self.scale)

    tokens = np.arange(12).reshape(3, 4) % 7
    same = parity.compare(seeded(Tied), Tied(), tokens, optimizer=adamw)
    assert same.same
    gradients = [row.difference.name for row in same.rows if row.difference.kind.value == "gradient"]
    assert set(gradients) == {"table.weight"}
    wrong = parity.compare(seeded(Tied), Tied(2.0), tokens)
    assert wrong.divergence.reference == "head"

    frozen = Mlp()
    frozen.up.weight.requires_grad_(False)
    compared = parity.compare(seeded(Mlp), frozen, VECTORS)
    assert [row.difference.name for row in compared.different] == ["up.weight"]
    assert "a gradient reaches weight" in compared.divergence.causes[0].text


def test_lost_layers_are_not_reached():
    class Branch(Mlp):
        def forward(self, x):
            if x.sum() > 1e9:
                return x.exp()
            return super().forward(x)

    compared = parity.compare(seeded(Mlp), Branch(), VECTORS)
    assert compared.same
    assert any("the second model's code in test_two_torchs.py" in gap for gap in compared.unreached)
