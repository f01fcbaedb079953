"""What one run of a model leaves out is listed: sides of choices, branches, epsilons, values of arguments."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch.nn import functional as F

from jaxpar import parity
from jaxpar.parity import recorder
from jaxpar.parity._sides import constants

X = np.random.RandomState(0).randn(4, 6)
TOKENS = np.array([[1, 2, 3]])


def torch_branch(x):
    return 2 * x if x.sum() > 100 else x


def jax_branch(x, train=True):
    if not train:
        x = 2 * x
    return x


def raising(x):
    if x.ndim != 2:
        raise ValueError(f"{x.ndim} axes")
    return x


TORCH = {
    "clamp": (lambda x: x.clamp(-50, 50), r"clamp in test_reach_choices.py:\d+ \(no number above 50\)"),
    "where": (lambda x: torch.where(x > 9, 0 * x, x), r"where in .* \(true\)"),
    "masked_fill": (lambda x: x.masked_fill(x > -9, 0) + x, r"masked_fill in .* \(false\)"),
    "maximum": (lambda x: torch.maximum(x, x - 9), r"maximum in .*the second is never larger"),
    "abs": (lambda x: (x**2).abs() - x**2 + x, "abs gets no number below 0"),
    "remainder": (lambda x: (x + 9) % 99 - 9, r"no number beyond the divisor"),
    "constant": (lambda x: (x + 9) + 1e-13 - 9, r"1e-13 is too small for"),
    "epsilon": (lambda x: x + 0 * F.layer_norm(x, (6,), eps=1e-12), r"eps=1e-12 is too small"),
    "normalize": (lambda x: x + 0 * F.normalize(x), r"no norm below 1e-12"),
    "dropout": (lambda x: F.dropout(x, 0.3, training=False), r"nothing is dropped"),
    "ties": (lambda x: x + 0 * x.amax(-1, keepdim=True), "equal numbers, of which amax"),
    "kink": (lambda x: F.relu(x) - F.relu(-x), "the derivative of relu exactly at its kink"),
    "equal lengths": (
        lambda x: x.reshape(2, 2, 6).swapaxes(0, 1).view(2, -1, 6).swapaxes(0, 1).reshape((4, 6)),
        r"two lengths are equal by chance \(reshape in test_reach_choices.py:\d+\)",
    ),
    "cast": (lambda x: x + 0 * x.to(torch.int8), r"to in .*no number beyond torch.int8"),
    "16 bits": (lambda x: x.bfloat16().to(x.dtype), "roundings to bfloat16 in test_reach_choices.py"),
    "branch": (torch_branch, r"torch's code in test_reach_choices.py:\d+"),
    "a bound": (lambda x: torch.where(x > 0.05, x, 1.0 * x), r"gt in .*0.05 may be moved a little"),
    "nothing": (raising, None),
}
JAX = {
    "clip": (lambda x: jnp.clip(x, -50, 50), r"max in test_reach_choices.py:\d+"),
    "where": (lambda x: jnp.where(x > 9, 0, x), r"where in test_reach_choices.py"),
    "under jit": (jax.jit(lambda x: jnp.where(x > 9, 0, x)), r"where in test_reach_choices.py"),
    "cond": (lambda x: jax.lax.cond(x.sum() > 99, lambda x: 2 * x, lambda x: x, x), r"cond in"),
    "constant": (lambda x: (x + 9) + 1e-13 - 9, "a constant that is added in test_reach_choices.py"),
    "cast": (lambda x: x + 0 * x.astype(jnp.int8), "a cast to a narrow integer in"),
    "branch": (jax_branch, r"JAX's code in test_reach_choices.py:\d+"),
    "a bound": (lambda x: jnp.where(x > 0.05, x, 1.0 * x), r"one side of > in test_reach_choices.py"),
    "both sides": (lambda x: jnp.where(x > X[0, 0], x, 1.0 * x), None),
    "maximum": (lambda x: jnp.maximum(x, -50), r"max in test_reach_choices.py:\d+"),
    "functions": (lambda x: x + 0 * jax.nn.softmax(x) + 0 * jax.nn.softplus(x), None),
    "infinities": (lambda x: x + 0 * jax.nn.logsumexp(x), None),
}


@pytest.mark.parametrize("case", TORCH)
def test_a_choice_of_torch_that_is_not_made_is_named(case):
    function, text = TORCH[case]
    check(parity.compare(function, lambda x: 1 * x, X, search=None), text, "torch")


@pytest.mark.parametrize("case", JAX)
def test_a_choice_of_jax_that_is_not_made_is_named(case):
    function, text = JAX[case]
    check(parity.compare(lambda x: 1 * x, function, X), text, "JAX")


def check(comparison, text, framework):
    gaps = comparison.unreached
    if text is None:
        assert not any(f"{framework}'s code" in gap for gap in gaps)
    else:
        assert any(re.search(text, gap) for gap in gaps), gaps


def test_a_function_that_jax_traced_for_a_library_first_is_the_models():
    x = np.random.RandomState(0).randn(4, 11)
    first = compile("call = lambda x: jnp.clip(x, -50, 50)", "flax/nnx/nn/normalization.py", "exec")
    names = {"jnp": jnp}
    exec(first, names)
    parity.compare(lambda x: 1 * x, names["call"], x)
    comparison = parity.compare(lambda x: 1 * x, lambda x: jnp.clip(x, -50, 50), x)
    check(comparison, r"max in test_reach_choices.py:\d+", "JAX")


def test_the_recorder_in_one_file_is_no_folder_of_a_library(monkeypatch):
    specs = {"jaxpar_recorder": SimpleNamespace(origin="jaxpar_recorder"), "torch": torch.__spec__}
    monkeypatch.setattr(constants.importlib.util, "find_spec", specs.get)
    assert constants.libraries.__wrapped__() == (f"{Path(torch.__file__).parent}/",)


def test_a_side_that_is_taken_in_one_of_two_calls_is_taken():
    def clamped(x):
        for factor in (1, 99, 1):
            y = (factor * x).clamp(-9, 9)
        return y

    assert not any("clamp" in gap for gap in parity.compare(clamped, lambda x: 1 * x, X).unreached)


class Tables(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = torch.nn.Embedding(5, 4, padding_idx=0), torch.nn.BatchNorm1d(4)

    def forward(self, tokens, mask, scale=1.0):
        return scale * self.norm((self.words(tokens) * mask[..., None]).mean(1))


class FlaxTables(nnx.Module):
    def __init__(self):
        self.words = nnx.Embed(5, 4, rngs=nnx.Rngs(0))
        self.norm = nnx.BatchNorm(4, momentum=0.9, use_fast_variance=False, rngs=nnx.Rngs(0))

    def __call__(self, tokens, mask, scale=1.0):
        return scale * self.norm((self.words(tokens) * mask[..., None]).mean(1))


@pytest.mark.full
def test_what_arguments_and_the_other_mode_do_is_named():
    inputs = np.array([[1, 2, 3], [2, 3, 3]]), np.ones((2, 3))
    comparison = parity.compare(
        Tables().eval(), FlaxTables(), inputs, optimizer=(lambda p: torch.optim.SGD(p, 0.1), optax.sgd(0.1))
    )
    assert comparison.same
    for text in (
        "other numbers in 1 (1.0), which has only one, of torch",
        "other values of torch's arguments scale",
        "other values of JAX's arguments scale",
        "rows of words.embedding (2 of 5), whose gradients are 0 on both sides",
        "(no index 0)",
        "evaluation: what JAX's layers do in training (norm)",
        "steps after step 2: schedules",
    ):
        assert any(text in gap for gap in comparison.unreached), (text, comparison.unreached)
    training = parity.compare(Tables(), FlaxTables(), inputs).unreached
    assert "training: what JAX's layers do in evaluation (norm)" in training
    assert "training: what torch's layers do in evaluation (norm)" in training
    assert not any("schedules" in gap for gap in training)


def test_an_axis_of_length_1_and_targets_that_are_to_be_ignored_are_named():
    loss = F.cross_entropy, lambda y, t: optax.softmax_cross_entropy_with_integer_labels(y, t).sum()
    linears = torch.nn.Linear(6, 3), nnx.Linear(6, 3, rngs=nnx.Rngs(0))
    gaps = parity.compare(*linears, X[:1], targets=np.array([2]), loss=loss).unreached
    assert any("axes of length 1 of torch's inputs: 0's axis 0" in gap for gap in gaps)
    assert any("cross_entropy in" in gap and "no target -100" in gap for gap in gaps)


def test_a_debugger_keeps_its_hook():
    def hook(frame, event, argument):
        return None

    before = sys.gettrace()
    sys.settrace(hook)
    try:
        comparison = parity.compare(torch_branch, lambda x: x, X)
        assert sys.gettrace() is hook
    finally:
        sys.settrace(before)
    assert not any("torch's code in" in gap for gap in comparison.unreached)


def test_a_trace_lists_what_torch_and_jax_left_out(tmp_path):
    trace = recorder.record(tmp_path / "trace", torch.nn.Sequential(torch.nn.Dropout(0.1)).eval(), X)
    gaps = parity.against(trace, lambda x: jnp.clip(x, -50, 50)).unreached
    assert "evaluation: dropout (0)" in gaps
    assert any("JAX's code takes one side of max in" in gap for gap in gaps)
