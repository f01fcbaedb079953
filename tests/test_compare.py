"""parity.compare: healthy twins are the same, and each planted fault is seen, placed and named."""

from __future__ import annotations

import functools
import json
from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import jaxpar
from jaxpar import parity
from jaxpar.errors import MaskError, MatchError, NotDeterministicError, ParityError
from jaxpar.parity._exactness import as_it_runs, exact

torch = pytest.importorskip("torch")

X = np.random.RandomState(0).randn(6, 3, 6, 6)
X4 = np.random.RandomState(1).randn(5, 4)
Y = np.array([0, 1, 2, 3, 0, 1])
ADAMW = (lambda p: torch.optim.AdamW(p, 1e-2), optax.adamw(1e-2, weight_decay=1e-2))
CROSS_ENTROPY = (
    torch.nn.functional.cross_entropy,
    lambda logits, y: optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(),
)


class Torch(torch.nn.Module):
    """Convolution, BatchNorm, flatten, LayerNorm, GELU, dropout: one of everything that ports get wrong."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4)
        self.fc, self.ln = torch.nn.Linear(4 * 3 * 3, 8), torch.nn.LayerNorm(8)
        self.drop, self.out = torch.nn.Dropout(0.25), torch.nn.Linear(8, 4)

    def forward(self, x):
        x = torch.nn.functional.max_pool2d(torch.relu(self.bn(self.conv(x))), 2)
        x = torch.nn.functional.gelu(self.ln(self.fc(x.flatten(1))))
        return self.out(self.drop(x))


class Flax(nnx.Module):
    def __init__(self, momentum=0.1, epsilon=1e-5, approximate=False, flat=False, rate=0.25, stop=False):
        conv = functools.partial(nnx.Conv, rngs=nnx.Rngs(0), kernel_init=nnx.initializers.zeros)
        linear = functools.partial(nnx.Linear, rngs=nnx.Rngs(0), kernel_init=nnx.initializers.zeros)
        self.conv, self.bn = conv(3, 4, (3, 3), padding=1), jaxpar.nn.BatchNorm(4, momentum=momentum)
        self.fc = linear(4 * 3 * 3, 8)
        self.ln = nnx.LayerNorm(8, epsilon=epsilon, use_fast_variance=False, rngs=nnx.Rngs(0))
        self.drop, self.out = nnx.Dropout(rate, rngs=nnx.Rngs(0)), linear(8, 4)
        self.approximate, self.flat, self.stop = approximate, flat, stop

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.bn(self.conv(x))), (2, 2), (2, 2))
        x = x if self.flat else x.transpose(0, 3, 1, 2)
        x = self.ln(self.fc(x.reshape(len(x), -1)))
        x = jax.lax.stop_gradient(x) if self.stop else x
        return self.out(self.drop(nnx.gelu(x, approximate=self.approximate)))


def compare(flax: Any = None, reference: Any = None, **arguments) -> parity.Comparison:
    reference = reference or Torch()
    return parity.compare(reference, flax or Flax(), X, **{"layout": "channels_last", **arguments})


@pytest.fixture(autouse=True)
def same_weights_every_time():
    torch.manual_seed(0)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"training": False},
        {"steps": 3, "optimizer": ADAMW, "targets": Y, "loss": CROSS_ENTROPY},
        {"steps": 2, "optimizer": ADAMW, "inputs_of_step": True},
        {"level": "numeric"},
        {"level": "trajectory", "optimizer": ADAMW, "steps": 3},
        {"level": "trajectory", "optimizer": ADAMW, "steps": 3, "resync": False},
    ],
    ids=["step", "evaluation", "training", "batches", "numeric", "trajectory", "free"],
)
def test_healthy_twins_are_the_same(arguments):
    inputs = X
    if arguments.pop("inputs_of_step", False):
        inputs = lambda step: np.random.RandomState(step).randn(*X.shape)  # noqa: E731
    found = parity.compare(Torch(), Flax(), inputs, layout="channels_last", **arguments)
    assert found.same, str(found)
    assert found.largest.severity < 1
    if arguments.get("training", True):
        noise = {row.difference.name for row in found.rows if row.outcome is parity.Outcome.NOISE}
        assert noise == {"conv.bias"}
    if arguments.get("level") == "trajectory":
        assert len(found.curve.steps) == 3
        assert found.curve.resync == arguments.get("resync", True)


@pytest.mark.parametrize(
    ("fault", "place", "cause"),
    [
        ({"epsilon": 1e-6}, "ln", "epsilon=1e-05 (it acts as 1e-06)"),
        ({"approximate": True}, "drop", "approximate=False (it acts as gelu(approximate=True))"),
        ({"flat": True}, "fc", "features are flattened as (C, *S)"),
        ({"momentum": 0.9}, "bn", "momentum=0.1 as torch and jaxpar.nn count it"),
        ({"rate": 0.5}, "drop", "rate=0.25 (it acts as 0.5)"),
        ({"stop": True}, "ln", None),
    ],
    ids=str,
)
def test_a_planted_fault_is_seen_placed_and_named(fault, place, cause):
    found = compare(Flax(**fault))
    assert not found.same
    assert found.divergence.candidate == place, found.divergence
    if cause:
        assert found.divergence.causes[0].text.startswith(cause)
        assert found.divergence.causes[0].relative < 1e-14
        assert cause in str(found)
    different = {layer.candidate for layer in found.divergence.layers if not layer.same}
    assert different <= {place}  # the layers behind it are given the reference's inputs, and agree


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize(
    ("optimizer", "cause"),
    [
        (optax.adamw(1e-2), "weight_decay=0.01 (it acts as 0.0001)"),
        (
            optax.chain(optax.add_decayed_weights(1e-2), optax.adam(1e-2)),
            "decoupled_weight_decay=True (it acts as False)",
        ),
        (optax.adamw(1e-2, b2=0.99, weight_decay=1e-2), "betas=(0.9, 0.999) (it acts as (0.9, 0.99))"),
    ],
)
def test_a_wrong_optimizer_is_named(optimizer, cause):
    found = compare(optimizer=(ADAMW[0], optimizer), steps=2)  # Adam's first step knows no betas
    first = min(row.difference.step for row in found.different)
    kinds = {row.difference.kind for row in found.different if row.difference.step == first}
    assert kinds <= {parity.Kind.UPDATE, parity.Kind.WEIGHT}
    assert [c.text for c in found.divergence.causes][:1] == [cause]


@pytest.mark.full
def test_the_decay_of_a_parameter_that_is_not_used_is_named():
    """torch's gradient is None and its AdamW leaves it alone; optax decays it: Dinov2's mask_token."""

    class TorchSpare(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.spare = torch.nn.Linear(3, 2), torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.fc(x)

    class FlaxSpare(nnx.Module):
        def __init__(self, rngs):
            self.fc, self.spare = nnx.Linear(3, 2, rngs=rngs), nnx.Param(jnp.ones(3))

        def __call__(self, x):
            return self.fc(x)

    x = np.random.RandomState(0).randn(4, 3)
    found = parity.compare(TorchSpare(), FlaxSpare(nnx.Rngs(0)), x, optimizer=ADAMW, steps=2)
    assert {row.difference.name for row in found.different} == {"spare"}
    (cause,) = found.divergence.causes
    assert cause.text == "torch leaves parameters without a gradient alone (they get one of zero)"


class Forgetful(nnx.Module):
    """A Linear that passes no gradient to its input, which only what stands before it would miss."""

    def __init__(self):
        self.fc = nnx.Linear(4, 3, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.fc(jax.lax.stop_gradient(x))


def test_the_gradient_of_the_input_is_compared():
    comparison = parity.compare(torch.nn.Sequential(OrderedDict(fc=torch.nn.Linear(4, 3))), Forgetful(), X4)
    assert not comparison.same
    wrong = {row.difference.kind for row in comparison.rows if row.outcome is parity.Outcome.DIFFERENT}
    assert wrong == {parity.Kind.INPUT_GRADIENT}


def test_a_wrong_loss_is_named():
    total = lambda logits, y: optax.softmax_cross_entropy_with_integer_labels(logits, y).sum()  # noqa: E731
    found = compare(loss=(CROSS_ENTROPY[0], total), targets=Y)
    assert found.different[0].difference.kind is parity.Kind.LOSS
    assert found.divergence.causes[0].text == "reduction='mean' (it acts as 'sum')"


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("rows", [8, 7, 3])
def test_replicas(rows):
    def twins(flax):
        reference = Torch()
        reference.drop.p = 0.0
        return parity.compare(
            reference, flax, np.random.RandomState(1).randn(rows, 3, 6, 6), layout="channels_last", replicas=3
        )

    assert twins(Flax(rate=0.0)).same
    if rows == 7:
        assert not twins(Flax(rate=0.0, epsilon=1e-6)).same


class TorchTail(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(5, 5), torch.nn.Linear(5, 2)

    def forward(self, x):
        return {"y": self.b(torch.tanh(self.a(x))), "x": x * 2}


class LinenTail(linen.Module):
    @linen.compact
    def __call__(self, x):
        return {"y": linen.Dense(2, name="b")(jnp.tanh(linen.Dense(5, name="a")(x))), "x": x * 2}


class LinenScaled(linen.Module):
    """A Linen module with a statistic, which replica 0 decides in torch and here."""

    momentum: float = 0.9

    @linen.compact
    def __call__(self, x):
        assert isinstance(x, jax.Array), type(x)
        mean = self.variable("batch_stats", "mean", jnp.zeros, (4,))
        if self.is_mutable_collection("batch_stats") and not self.is_initializing():
            mean.value = self.momentum * mean.value + (1 - self.momentum) * x.mean(0)
        return linen.Dense(3, name="dense")(x)


class TorchScaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        with torch.no_grad():
            self.mean.copy_(0.9 * self.mean + 0.1 * x.mean(0))
        return self.dense(x)


@pytest.mark.sampled(2)
@pytest.mark.full
@pytest.mark.parametrize("rows", [6, 7])
def test_linen_with_replicas(rows):
    x = np.random.RandomState(1).randn(rows, 4)
    options = {"replicas": 3, "steps": 2, "optimizer": (lambda p: torch.optim.SGD(p, 0.1), optax.sgd(0.1))}
    same = parity.compare(TorchScaled(), LinenScaled(), x, **options)
    assert same.same, same
    assert same.replicas == 3
    wrong = parity.compare(TorchScaled(), LinenScaled(momentum=0.8), x, **options)
    assert {row.difference.name for row in wrong.different} == {"mean"}


@pytest.mark.full
def test_linen():
    x = np.random.RandomState(0).randn(4, 5)
    found = parity.compare(TorchTail(), LinenTail(), x)
    assert found.same, str(found)
    assert {row.difference.name for row in found.rows} >= {"['y']", "['x']", "a.kernel"}
    kept = LinenTail().init(jax.random.key(0), x)
    assert not parity.compare(TorchTail(), LinenTail(), x, weights="own", variables=kept).same


class FlaxPartly(nnx.Module):
    """Takes the weights of a layer without calling it, and the wrong function after the next one."""

    def __init__(self):
        self.a, self.b = nnx.Linear(5, 5, rngs=nnx.Rngs(0)), nnx.Linear(5, 2, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return {"y": self.b(nnx.relu(x @ self.a.kernel[...] + self.a.bias[...])), "x": x * 2}


def test_a_layer_that_was_not_replayed_is_not_called_the_same():
    found = parity.compare(TorchTail(), FlaxPartly(), np.random.RandomState(0).randn(4, 5))
    first, second = found.divergence.layers
    assert (first.candidate, first.same, first.note) == ("a", False, "not replayed: not called in Flax")
    assert (second.candidate, second.same) == ("b", True)
    assert found.divergence.candidate == "b"
    assert found.divergence.causes[0].text == "tanh (it acts as relu)"
    assert parity.Comparison.from_json(json.dumps(found.as_dict())).divergence == found.divergence


def test_own_weights_say_what_is_wrong_with_them():
    reference, flax = TorchTail(), LinenTail()
    x = np.random.RandomState(0).randn(4, 5)
    variables = parity.load_torch(flax, reference, inputs=(x,))
    variables["params"]["a"]["kernel"] = variables["params"]["a"]["kernel"].T
    found = parity.compare(reference, flax, x, weights="own", variables=variables)
    assert found.divergence.causes[0].text == "its axes are permuted by (1, 0)"
    assert found.divergence.candidate == "a"


@pytest.mark.full
def test_neither_module_is_changed():
    reference, flax = Torch(), Flax()
    before = {name: x.clone() for name, x in reference.state_dict().items()}
    kernel = flax.conv.kernel[...]
    compare(flax, reference, optimizer=ADAMW)
    assert all(torch.equal(x, before[name]) for name, x in reference.state_dict().items())
    assert flax.conv.kernel[...] is kernel
    assert jax.config.jax_enable_x64


def test_x64_is_handled_inside_and_restored():
    with jax.enable_x64(False):
        assert compare(training=False).same
        assert not jax.config.jax_enable_x64


def test_exact_arithmetic_is_of_its_block_alone():
    """Also of one inside of another."""

    def settings():
        return jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision

    with jax.enable_x64(False), jax.default_matmul_precision("bfloat16"):
        with exact():
            assert settings() == (True, "highest")
            with exact():
                assert settings() == (True, "highest")
            with as_it_runs():
                assert settings() == (False, "bfloat16")
        assert settings() == (False, "bfloat16")


def test_dropout_that_only_one_side_has():
    reference = Torch()
    reference.drop = torch.nn.Identity()
    with pytest.raises(MaskError, match="drop is dropout call number 1 in Flax, and torch made only 0"):
        compare(reference=reference)
    with pytest.raises(MaskError, match="torch dropped 1 times and Flax 0 times"):
        compare(Flax(rate=0.0))


def test_a_model_that_draws_otherwise_is_refused():
    class Noisy(Torch):
        def forward(self, x):
            return super().forward(x) + float(np.random.rand())

    with pytest.raises(NotDeterministicError, match="the torch module gives two results for the same batch"):
        compare(reference=Noisy())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"steps": 2}, ValueError, "steps=2 without an optimizer"),
        ({"steps": 0}, ValueError, "steps=0"),
        ({"level": "trajectory"}, ValueError, "give an optimizer"),
        ({"level": "numeric", "steps": 2, "optimizer": ADAMW}, ValueError, "is about one step"),
        ({"level": "exact"}, ValueError, "is none of semantic, numeric, trajectory"),
        ({"dtype": "int8"}, ValueError, "is none of float32"),
        ({"layout": "NHWC"}, ValueError, "layout is 'NHWC'"),
        ({"weights": "mine"}, ValueError, "neither 'torch' nor 'own'"),
        ({"loss": CROSS_ENTROPY[0]}, TypeError, "loss is a pair"),
    ],
)
def test_misuse(arguments, error, message):
    with pytest.raises(error, match=message):
        compare(**arguments)


def test_wrong_modules():
    with pytest.raises(TypeError, match=r"the first argument is a torch\.nn\.Module, not Flax"):
        parity.compare(Flax(), Torch(), X)
    with pytest.raises(MatchError, match=r"conv\.weight"):
        parity.compare(Torch(), nnx.Linear(3, 3, rngs=nnx.Rngs(0)), X)


@pytest.mark.full
def test_assert_parity():
    assert parity.assert_parity(Torch(), Flax(), X, layout="channels_last", training=False).same
    with pytest.raises(ParityError, match="epsilon=1e-05"):
        parity.assert_parity(Torch(), Flax(epsilon=1e-3), X, layout="channels_last", training=False)


def test_ctrl_c_keeps_what_was_completed():
    def stop(step, steps):
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(parity.Stopped) as stopped:
        compare(optimizer=ADAMW, steps=5, progress=stop)
    found = stopped.value.comparison
    assert found.steps == 2
    assert "stopped by Ctrl-C after step 2 of 5" in found.notes


def test_elements_at_a_kink_are_counted():
    class Relu(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x)

    class FlaxRelu(nnx.Module):
        def __call__(self, x):
            return nnx.relu(x)

    x = np.array([[0.0, 1e-7, 1.0, -1.0]])
    (note,) = (note for note in parity.compare(Relu(), FlaxRelu(), x).notes if "within" in note)
    assert note.startswith("2 of 4 elements that relu was given are within 1e-6 of its kink")
