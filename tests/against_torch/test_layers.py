"""The law that all layers are held to finds what is planted."""

from __future__ import annotations

import dataclasses

import jax
import pytest

import jaxpar

torch = pytest.importorskip("torch")
from against_torch.layers import Case, Refused, difference, named, refusal  # noqa: E402

torch.set_num_threads(1)

NAMES = {"weight": "scale", "running_mean": "mean", "running_var": "var"}
HEALTHY = Case("BatchNorm1d(6)", "BatchNorm(6)", ((5, 3, 6),), weights=named(NAMES))


def test_the_same_layer_passes():
    assert 0 < difference(HEALTHY) < 1e-13
    assert difference(dataclasses.replace(HEALTHY, weights=None)) == difference(HEALTHY)


FAULTS = {
    "eps": ({"jaxpar": "BatchNorm(6, eps=1.1e-5)"}, "step 0: outputs 0: relative"),
    "momentum": ({"jaxpar": "BatchNorm(6, momentum=0.9)"}, "step 0: state mean: relative"),
    "no bias": ({"jaxpar": "BatchNorm(6, affine=False)"}, "torch has .* jaxpar"),
    "axis": ({"torch": "BatchNorm1d(3)", "jaxpar": "BatchNorm(3)", "inputs": ((5, 3, 3),), "channels": None},
             "step 0: outputs"),
    "names": ({"weights": dict}, "torch has .* jaxpar"),
    "swapped": ({"weights": named(NAMES | {"weight": "bias", "bias": "scale"})}, "step 0: outputs"),
    "size": ({"torch": "BatchNorm1d(5)", "inputs": ((5, 3, 5),)}, "bias: torch's"),
    "a constant": ({"torch": "lambda x: x.sin()", "jaxpar": "lambda x: jnp.sin(x) + 1e-9"},
                   "step 0: outputs"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_in_a_case_is_found(fault):
    changes, message = FAULTS[fault]
    with pytest.raises(AssertionError, match=message):
        difference(dataclasses.replace(HEALTHY, **{"weights": HEALTHY.weights} | changes))


def scaled(factor):
    """The outputs as they are, the gradient times `factor`."""
    return lambda x: x * factor + jax.lax.stop_gradient(x * (1 - factor))


def plant(monkeypatch, change):
    plain = jaxpar.nn.BatchNorm.__call__
    monkeypatch.setattr(jaxpar.nn.BatchNorm, "__call__", lambda self, x: change(plain, self, x))


def only_in_evaluation(plain, layer, x):
    return plain(layer, x) * (1 + 1e-9 * layer.use_running_average)


def scale_without_gradient(plain, layer, x):
    y = plain(layer, x)
    scale = layer.scale[...]
    return y + (jax.lax.stop_gradient(scale) - scale) * 1e-9


def buffer(plain, layer, x):
    y = plain(layer, x)
    layer.var[...] *= 1 + 1e-9
    return y


PATCHES = {
    "input gradient": (
        lambda plain, layer, x: scaled(1 + 1e-9)(plain(layer, x)),
        "step 0: input gradients 0",
    ),
    "parameter gradient": (scale_without_gradient, "step 0: parameter gradients scale"),
    "buffer": (buffer, "step 0: state var"),
    "evaluation": (only_in_evaluation, "evaluation: outputs 0"),
    "one output more": (lambda plain, layer, x: (plain(layer, x), x), "only here"),
}


@pytest.mark.parametrize("fault", PATCHES)
def test_a_planted_fault_in_a_layer_is_found(fault, monkeypatch):
    change, message = PATCHES[fault]
    plant(monkeypatch, change)
    with pytest.raises(AssertionError, match=message):
        difference(HEALTHY)


def test_refusals():
    calls = {"torch": "Conv2d(4, 6, 3, groups=3)", "error": ValueError, "reason": "last axis"}
    # BatchNorm stands for a layer that refuses nothing when it is made.
    with pytest.raises(AssertionError, match="is not refused"):
        refusal(Refused(jaxpar="BatchNorm(6)", **calls))
    with pytest.raises(AssertionError, match=r"torch and BatchNorm1d\(6\): None"):
        refusal(Refused("BatchNorm1d(6)", "[].pop()", IndexError, "empty list"))
    with pytest.raises(AssertionError, match=r"torch and BatchNorm1d\('x'\): "):
        refusal(Refused("BatchNorm1d('x')", "[].pop()", IndexError, "empty list", torch_too=False))
    with pytest.raises(AssertionError, match="pop from empty list"):
        refusal(Refused("BatchNorm1d('x')", "[].pop()", IndexError, "another reason"))
    assert refusal(Refused("BatchNorm1d('x')", "[].pop()", IndexError, "empty")) == "pop from empty list"
