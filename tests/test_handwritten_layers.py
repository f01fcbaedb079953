"""A port may write torch's layers as functions: their mistakes have the layer's line and a name."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar import parity

torch = pytest.importorskip("torch")
tn = torch.nn

WIDTH, HIDDEN = 4, 3
X = np.random.RandomState(0).randn(2, 5, WIDTH)


class Reference(tn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = tn.LSTM(WIDTH, HIDDEN, batch_first=True, bidirectional=True)
        self.norm, self.out = tn.LayerNorm(2 * HIDDEN), tn.Linear(2 * HIDDEN, 2)

    def forward(self, x):
        hidden = self.norm(self.lstm(x)[0])
        return hidden, self.out(hidden)


def direction(p, suffix, x, forget, reverse):
    w_in, w_hidden, b_in, b_hidden = (
        p[f"{name}_l0{suffix}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )

    def step(state, x):
        h, c = state
        i, f, g, o = jnp.split(x @ w_in.T + b_in + h @ w_hidden.T + b_hidden, 4, -1)
        c = jax.nn.sigmoid(f + forget) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((x.shape[0], HIDDEN), x.dtype)
    return jax.lax.scan(step, (zeros, zeros), x.swapaxes(0, 1), reverse=reverse)[1].swapaxes(0, 1)


def normalised(p, x, correction=0, outside=False):
    variance = jnp.var(x, -1, keepdims=True, ddof=correction)
    root = jnp.sqrt(variance) + 1e-5 if outside else jnp.sqrt(variance + 1e-5)
    return (x - x.mean(-1, keepdims=True)) / root * p["weight"] + p["bias"]


def model(p, x, forget=0.0, reverse=True, flipped=False, **norm):
    backward = direction(p["lstm"], "_reverse", x, forget, reverse)
    backward = backward[:, ::-1] if flipped else backward
    hidden = jnp.concatenate([direction(p["lstm"], "", x, forget, False), backward], -1)
    hidden = normalised(p["norm"], hidden, **norm)
    return hidden, hidden @ p["out"]["weight"].T + p["out"]["bias"]


def compared(**mistake):
    torch.manual_seed(0)
    reference = Reference()
    params = {name: {} for name in ("lstm", "norm", "out")}
    for name, x in reference.named_parameters():
        layer, _, leaf = name.partition(".")
        params[layer][leaf] = jnp.asarray(x.detach().numpy())
    return parity.compare(reference, (lambda p, x: model(p, x, **mistake), params), X)


MISTAKES = {
    "the forget gate has no bias of its own (1 is added to it)": {"forget": 1.0},
    "the backward direction reads from the end (it reads from the beginning)": {"reverse": False},
    "the backward direction's results are in the order of time (they are in the order of reading)": {
        "flipped": True
    },
    "the variance divides by n (it divides by n - 1)": {"correction": 1},
    "epsilon is added to the variance (it is added to the deviation)": {"outside": True},
    "epsilon is added to the variance, of n (it is added to the deviation, of n - 1)": {
        "correction": 1,
        "outside": True,
    },
}


def test_layers_by_hand_are_the_same():
    assert compared().same


@pytest.mark.parametrize("cause", MISTAKES)
def test_a_mistake_is_named(cause):
    divergence = compared(**MISTAKES[cause]).divergence
    assert cause in [x.text for x in divergence.causes], divergence
    # Arrays are compared by their sorted numbers, so that another order shows in what follows only.
    layer = "lstm" if "forget" in cause or "reads from" in cause else "layer_norm"
    assert f"torch's {layer} in test_handwritten_layers.py" in divergence.where


class Sum(tn.Module):
    """Reversed rows with the weights of the other order have the same sum."""

    def __init__(self):
        super().__init__()
        self.first, self.second = tn.Parameter(torch.randn(3)), tn.Parameter(torch.randn(3))

    def forward(self, x):
        rows = torch.tanh(x * self.first)
        return rows, (rows * self.second).sum(-1)


def flipped(p, x):
    rows = jnp.tanh(x * p["first"])
    return rows, (rows * p["second"][::-1]).sum(-1)


def of_others(p, x):
    return jnp.tanh(x * p["first"]), (jax.nn.silu(x * p["first"]) * p["second"]).sum(-1)


@pytest.mark.parametrize("wrong", [flipped, of_others])
def test_a_cause_leaves_outputs_that_agree_as_they_are(wrong):
    """Of the second output alone it would be that tanh's rows are reversed, or that tanh is silu."""
    torch.manual_seed(0)
    reference = Sum()
    params = {name: jnp.asarray(x.detach().numpy()) for name, x in reference.named_parameters()}
    x = np.random.RandomState(0).randn(4, 3)
    divergence = parity.compare(reference, (wrong, params), x).divergence
    assert not any("tanh" in cause.text for cause in divergence.causes), divergence.causes
