"""The verdict comes first; `search` bounds what follows, and Ctrl-C keeps what has been found."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from flax import nnx

from jaxpar import parity
from jaxpar._cli.main import cli

X = np.random.RandomState(0).randn(4, 6).astype(np.float32)
PLACES = 3


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.LayerNorm(6) for _ in range(PLACES))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x * (i + 1))
        return x


class Flax(nnx.Module):
    """As torch's, with the wrong epsilon in every layer."""

    def __init__(self):
        self.layers = nnx.List(nnx.LayerNorm(6, epsilon=1e-3, rngs=nnx.Rngs(0)) for _ in range(PLACES))

    def __call__(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x * (i + 1))
        return x


def places(comparison):
    divergence = comparison.divergence
    return 0 if divergence is None else 1 + len(divergence.others)


@pytest.mark.parametrize(
    ("search", "numbers"),
    [("full", [0, 1, 2, 3]), ("quick", [0, 1]), (None, [0]), (600, [0, 1, 2, 3]), (1e-9, [0, 1, 1])],
)
def test_the_verdict_comes_first_and_search_bounds_the_rest(search, numbers):
    results = []
    comparison = parity.compare(Torch(), Flax(), X, search=search, on_result=results.append)
    assert [places(result) for result in results] == numbers
    assert results[-1] is comparison
    assert {result.same for result in results} == {False}
    ended = [note for note in comparison.notes if "the search for causes was ended" in note]
    assert len(ended) == (search == 1e-9)


def test_a_full_search_names_every_cause():
    comparison = parity.compare(Torch(), Flax(), X)
    divergences = (comparison.divergence, *comparison.divergence.others)
    assert [one.causes[0].text for one in divergences] == ["epsilon=1e-05 (it acts as 0.001)"] * PLACES


def test_the_same_is_one_result():
    results = []
    parity.compare(
        torch.nn.LayerNorm(6), nnx.LayerNorm(6, epsilon=1e-5, rngs=nnx.Rngs(0)), X, on_result=results.append
    )
    assert [result.same for result in results] == [True]


@pytest.mark.full
def test_ctrl_c_in_the_search_keeps_what_was_found():
    def stop(result):
        if places(result) == 2:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as stopped:
            parity.compare(Torch(), Flax(), X, on_result=stop)
    finally:
        signal.signal(signal.SIGINT, before)
    assert isinstance(stopped.value, parity.Stopped)
    comparison = stopped.value.comparison
    assert places(comparison) == 2
    assert comparison.notes[-1] == (
        "the search for causes was ended by Ctrl-C, with 2 places; there may be more"
    )


@pytest.mark.parametrize("search", ["fast", 0, -1, float("nan")])
def test_other_values_are_refused(search):
    with pytest.raises(ValueError, match=f"search={search!r} is none of"):
        parity.compare(Torch(), Flax(), X, search=search)


@pytest.mark.parametrize("search", ["fast", "0", "nan"])
def test_the_command_refuses_other_values(search, tmp_path):
    spec = tmp_path / "spec.py"
    spec.write_text("")
    result = CliRunner().invoke(cli, ["parity", str(spec), "--search", search])
    assert result.exit_code == 2
    assert "--search" in result.output


SPEC = f"""
import sys
sys.path.insert(0, {__file__.rpartition("/")[0]!r})
from test_parity_search import X, Flax, Torch
torch_module, flax_module, inputs = Torch, Flax, X
"""


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(("search", "lines"), [("quick", 2), ("none", 1)])
def test_the_command_prints_the_verdict_before_the_places(search, lines, tmp_path):
    spec = tmp_path / "spec.py"
    spec.write_text(SPEC)
    command = [sys.executable, "-m", "jaxpar", "parity", str(spec), "--search", search]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 1
    text = [line for line in ended.stderr.splitlines() if line.startswith(("Different: ", "1. ", "2. "))]
    assert len(text) == lines
    assert text[0].startswith("Different: ")
