"""Keras 3 models on JAX are compared with torch's, layer by layer."""

from __future__ import annotations

import threading

import numpy as np
import optax
import pytest
import torch

from jaxpar import errors, parity

keras = pytest.importorskip("keras")

from benchmarks.parity import keras_models  # noqa: E402
from benchmarks.parity.keras_layers import PAIRS  # noqa: E402
from jaxpar._rulebook import ROWS  # noqa: E402
from jaxpar.parity._keras.model import intercepted  # noqa: E402

L = keras.layers
IMAGES = np.random.RandomState(0).randn(4, 3, 6, 6).astype(np.float32)
REFUSED = {"AlphaDropout": NotImplementedError, "SpectralNormalization": errors.MatchError}
SGD = (lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9), optax.sgd(0.1, momentum=0.9))


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", PAIRS)
def test_a_layer_is_the_same_as_torchs_and_a_planted_mistake_is_not(name):
    if name in REFUSED:
        with pytest.raises(REFUSED[name]):
            PAIRS[name].compared()
        return
    assert PAIRS[name].compared().same
    assert not PAIRS[name].compared(wrong=True).same


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("i", range(2))
def test_a_drawn_model_is_the_same_and_a_planted_mistake_has_its_place(i):
    case = keras_models.planted(34, 2)[i]
    healthy, verdict, place = keras_models.judged(case)
    assert healthy
    assert verdict == "different"
    assert place.startswith(f"{case[2]} (")
    assert case[1] in place


def test_every_row_names_a_class_of_keras():
    names = [key.removeprefix("keras.") for key in ROWS if key.startswith("keras.")]
    assert len(names) > 40
    assert all(issubclass(getattr(L, name), L.Layer) for name in names)


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Conv2d(4, 4, 1)])
        self.norm = torch.nn.BatchNorm2d(4)
        self.drop = torch.nn.Dropout(0.5)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(self.drop(self.norm(x).mean((2, 3))))


class KerasNet(keras.Model):
    def __init__(self, momentum=0.9, epsilon=1e-5, activation="tanh", rate=0.5):
        super().__init__()
        self.blocks = [
            L.Conv2D(4, 3, padding="same", activation="tanh"),
            L.Conv2D(4, 1, activation=activation),
        ]
        self.norm = L.BatchNormalization(momentum=momentum, epsilon=epsilon)
        self.drop = L.Dropout(rate)
        self._head = L.Dense(2)

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self._head(self.drop(keras.ops.mean(self.norm(x), (1, 2))))


def built(**options):
    net = KerasNet(**options)
    net(np.moveaxis(IMAGES, 1, -1))
    return net


def compared(net, **options):
    return parity.compare(TorchNet(), net, IMAGES, layout="channels_last", **options)


def cause(comparison):
    return comparison.divergence.candidate, comparison.divergence.causes[0].text


CAUSES = {
    "an epsilon": ({"epsilon": 1e-3}, False, "norm", "epsilon=1e-05 (it acts as 0.001)"),
    "a momentum": (
        {"momentum": 0.99},
        True,
        "norm",
        "momentum=0.1 as torch counts it, 0.9 in Keras (it acts as 0.01, Keras's 0.99), "
        "and the running variance is the unbiased one",
    ),
    "a biased variance": (
        {},
        True,
        "norm",
        "the running variance is the unbiased one, n/(n-1) of what it is",
    ),
    "an activation": ({"activation": "relu"}, False, "norm", "tanh (it acts as relu)"),
    "a rate of dropout": ({"rate": 0.25}, True, "drop", "rate=0.5 (it acts as 0.25)"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CAUSES)
def test_a_mistake_has_its_place_and_cause(case):
    options, training, place, text = CAUSES[case]
    comparison = compared(built(**options), training=training)
    assert cause(comparison) == (place, text)
    assert f"{place} in torch, {place} in" not in str(comparison)
    assert comparison.subject == "TorchNet in torch against KerasNet in Keras"
    # Keras's moving variance is biased, so that in training the norm's state always differs.
    assert all(x.same for x in comparison.divergence.layers if x.candidate not in (place, "norm"))


def test_statistics_are_buffers_and_random_states_neither():
    rows = compared(built(), training=True).rows
    kinds = {(row.difference.kind, row.difference.name) for row in rows}
    assert (parity.Kind.STATE, "norm.moving_mean") in kinds
    assert (parity.Kind.GRADIENT, "norm.moving_mean") not in kinds
    assert not any("seed" in name for _, name in kinds)
    different = [row.difference.name for row in rows if row.outcome is parity.Outcome.DIFFERENT]
    assert different == ["norm.moving_variance"]  # Keras's is biased


@pytest.mark.full
def test_steps_of_training_agree():
    net = built()
    net.norm.trainable = False  # evaluation, as Keras means it
    torch_net = TorchNet()
    torch_net.norm.eval().requires_grad_(False)
    assert parity.compare(torch_net, net, IMAGES, layout="channels_last", optimizer=SGD, steps=3).same


@pytest.mark.full
def test_replicas_and_other_levels_agree():
    assert compared(built(), training=False, replicas=2).same
    for options in ({"level": "as it runs"}, {"level": "numeric", "dtype": "bfloat16"}):
        assert compared(built(), training=False, **options).same


def test_the_dtype_under_test_is_the_layers():
    net = built()
    with intercepted({"norm": net.norm}, "bfloat16"):
        assert net.norm.compute_dtype == net.norm.variable_dtype == "bfloat16"
        others = []
        thread = threading.Thread(target=lambda: others.append(net.norm.compute_dtype))
        thread.start()
        thread.join()
        assert others == ["float32"]
    assert type(net.norm) is L.BatchNormalization


def test_load_torch_fills_the_keras_model():
    net, torch_net = built(), TorchNet().eval()
    assert parity.load_torch(net, torch_net) is net
    expected = torch_net(torch.tensor(IMAGES)).detach().numpy()
    np.testing.assert_allclose(net(np.moveaxis(IMAGES, 1, -1)), expected, atol=1e-6)
    torch_net.head.weight = torch.nn.Parameter(torch.zeros(3, 4))
    before = [np.asarray(x.value) for x in net.weights]
    with pytest.raises(errors.MatchError, match="head"):
        parity.load_torch(net, torch_net)
    for old, new in zip(before, net.weights, strict=True):
        np.testing.assert_array_equal(old, new.value)


def small():
    inputs = keras.Input((6,)), keras.Input((3,))
    hidden = L.Dense(8, activation="relu")(L.Concatenate()(inputs))
    return keras.Model(inputs, L.Dense(2)(L.LayerNormalization(epsilon=1e-5)(hidden)))


class TwoInputs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = torch.nn.Linear(9, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)

    def forward(self, x, y):
        return self.c(self.b(torch.relu(self.a(torch.cat([x, y], 1)))))


TWO = tuple(np.random.RandomState(i).randn(5, n).astype(np.float32) for i, n in enumerate((6, 3)))


def test_a_functional_model_is_matched_by_an_example():
    small()  # the names that Keras makes up count on in the process
    net, torch_net = small(), TwoInputs()
    mapping = parity.match(net, torch_net, example=TWO)
    assert dict(mapping) == {"a": "dense", "b": "layer_normalization", "c": "dense_1"}
    assert parity.compare(torch_net, net, TWO, mapping=mapping).same
    swapped = {**mapping, "b": "layer_normalization", "a": "dense_1", "c": "dense"}
    with pytest.raises(errors.MatchError):
        parity.compare(torch_net, net, TWO, mapping=swapped)


@pytest.mark.full
def test_a_record_takes_keras(tmp_path):
    path, mapping = tmp_path / "net.safetensors", {"a": "dense", "b": "layer_normalization", "c": "dense_1"}
    parity.record(path, TwoInputs(), small(), TWO, mapping=mapping)
    checked = parity.check(path, small())
    assert checked.same
    assert checked.subject.startswith("Functional against")
    net = small()
    net.layers[3].activation = keras.activations.gelu
    assert not parity.check(path, net).same


def test_a_trace_of_keras_judges_torch(tmp_path):
    parity.record_jax(tmp_path / "trace", small(), TWO, loss=square)
    mapping, right, wrong = (
        {"a": "dense", "b": "layer_normalization", "c": "dense_1"},
        TwoInputs(),
        TwoInputs(),
    )
    assert parity.against_jax(tmp_path / "trace", right, loss=square, mapping=mapping).same
    wrong.b.eps = 1e-3
    judged = parity.against_jax(tmp_path / "trace", wrong, loss=square, mapping=mapping)
    assert not judged.same
    assert judged.divergence.candidate == "layer_normalization"


def square(y):
    return (y**2).mean()


def test_a_model_without_variables_is_refused():
    with pytest.raises(TypeError, match="without variables yet"):
        parity.compare(torch.nn.Linear(6, 2), keras.Sequential([L.Dense(2)]), TWO[0])


def test_a_model_that_was_never_called_is_refused_although_a_layer_has_variables():
    class Halfway(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = L.Dense(2), L.Dense(2)
            self.first.build((None, 6))

        def call(self, x):
            return self.second(self.first(x))

    with pytest.raises(TypeError, match="Halfway is a Keras model without variables yet"):
        parity.compare(torch.nn.Linear(6, 2), Halfway(), TWO[0])


def test_a_model_marked_as_built_whose_layers_have_no_variables_is_refused():
    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.first = L.Dense(2)

        def call(self, x):
            return self.first(x)

    model = Subclassed()
    with pytest.warns(UserWarning, match="does not have a `build\\(\\)` method"):
        model.build((None, 6))
    assert model.built
    with pytest.raises(TypeError, match="Subclassed is a Keras model without variables yet"):
        parity.compare(torch.nn.Linear(6, 2), model, TWO[0])


def test_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    with pytest.raises(TypeError, match="KERAS_BACKEND=jax"):
        parity.load_torch(small(), TwoInputs())


def test_a_shared_layer_is_one_layer_with_two_paths():
    class Shared(keras.Model):
        def __init__(self):
            super().__init__()
            self.first = self.again = L.Dense(6)

        def call(self, x):
            return self.again(self.first(x))

    class TorchShared(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = self.again = torch.nn.Linear(6, 6)

        def forward(self, x):
            return self.again(self.first(x))

    net = Shared()
    net(TWO[0])
    assert parity.compare(TorchShared(), net, TWO[0]).same
