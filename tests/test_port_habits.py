"""port: habits of notebooks, research code and older tutorials. The reference is torch."""

import copy
import functools
import gc
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from porting import habits, hooks, published, research, selecting

from jaxpar import parity
from jaxpar.parity._port import port as port_file
from jaxpar.parity._port.rules import stand_ins

ANY = ("mask.any()", "mask.all() or mask.any()", "mask.any()")
HOLES = (habits.Decides, research.Mixed, research.Autocast, research.Refilled)
KINDS = {**vars(habits), **vars(research), **vars(published), **vars(selecting), **vars(hooks)}.values()
CASES = [kind for kind in KINDS if hasattr(kind, "inputs") and kind not in HOLES]


def ported(kind):
    generator = torch.Generator().manual_seed(0)
    return parity.port(kind, *(torch.randn(shape, generator=generator) for shape in kind.inputs))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_ports_are_the_same(kind):
    port = ported(kind)
    assert port.status == 0, (
        f"{port.source}\n{port.holes}\n{port.failure}\n{port.comparison}\n{port.differences}"
    )
    assert port.largest < 1e-10


def test_what_decides_by_data_or_freezes_some_is_a_hole():
    port = ported(habits.Decides)
    assert "export" not in port.source, "a mixin's method that did not run"
    assert [
        any(text in hole for hole in port.holes)
        for text in ("by data", "requires_grad_(trained)", "calculate_gain")
    ] == [True] * 3


def test_a_proof_compiles_with_the_options_of_few_calls(monkeypatch):
    monkeypatch.setattr(port_file, "compiler_options", lambda: {"xla_of_no_release": 1})
    assert "xla_of_no_release" in ported(CASES[0]).failure


def test_numbers_that_torch_leaves_open_are_not_compared():
    for kind in (published.Neighbours, published.Delays):
        notes = [note for note in ported(kind).notes if note.startswith("not compared")]
        assert [note.partition(":")[0] for note in notes] == ["not compared with zeros in the inputs"]


def test_a_constructor_restores_modes_and_fills_what_is_not_saved():
    port = parity.port(hooks.Sized, torch.randn(3, 4))
    assert port.status == 0, port.comparison
    assert "layer.train() if mode else layer.eval()" in port.source


def test_a_seed_in_a_call_is_a_hole():
    port = parity.port(published.Seeds, torch.ones(3, 3))
    assert any("torch.manual_seed(0)" in hole for hole in port.holes)


def test_what_a_constructor_draws_needs_no_stream():
    assert "fork()" not in ported(research.Placed).source


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (research.Mixed, "changes x as well, in place, in some"),
        (research.Autocast, "computes in another type"),
        (research.Refilled, "changes x as well, in place"),
    ],
)
def test_what_some_modules_do_in_place_or_in_another_type_is_a_hole(kind, reason):
    port = ported(kind)
    assert port.holes
    assert all(reason in hole for hole in port.holes)


def test_a_branch_by_chance_raises_where_the_chance_is_not_zero():
    # A rate that is not zero and that no draw is below, whatever was drawn before.
    port = parity.port(functools.partial(research.InPlaceFunctions, 1e-9), torch.ones(3, 4))
    assert port.status == 3
    assert "decides by random numbers" in port.failure


@pytest.mark.parametrize(
    ("kind", "holes"),
    [
        (
            selecting.Normed,
            ["torch.where(x.mean(-1) > 0): its shape", "z[mask] = self.norm(x[mask]): its shape"],
        ),
        (selecting.Averaged, ["torch.where(x.mean(-1) > 0): its shape"]),
        (selecting.Halved, ["torch.where(x.mean(-1) > i): its shape"]),
        (selecting.Divided, ["y[mask] = self.layer(x[mask]) / x[mask]: its shape"]),
        (selecting.Scales, [f"{text}: it decides by data" for text in ANY]),
        (selecting.Kept, ["torch.histc(layer.weight, 4): there is no rule"]),
    ],
)
def test_rows_that_depend_on_each_other_and_plain_constructors_are_holes(kind, holes):
    port = parity.port(kind, torch.arange(12.0).reshape(3, 4) - 4)  # two rows have a positive mean
    assert [
        text.partition(": ")[2].startswith(hole) for text, hole in zip(port.holes, holes, strict=True)
    ] == [True] * len(holes), port.holes


@pytest.mark.slow
@pytest.mark.parametrize("how", ["memory", "frozen", "shape"])
def test_a_weight_that_is_more_than_an_initial_value_is_no_proof(how):
    assert parity.port(functools.partial(habits.Shares, how), torch.ones(3, 4)).status in (1, 3)


class Hooked(nnx.Module):
    def __init__(self, scale):
        self.layer, self.scale = nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.Param(jnp.array(scale))
        self.features = stand_ins.FilledDict()

        def hook(layer, inputs, output):
            self.features["x"] = inputs[0]

        stand_ins.register_forward_hook(self.layer, hook)

    def __call__(self, x):
        self.layer(x)
        return self.features["x"] * self.scale


def test_what_hooks_fill_is_of_no_state():
    nets, call = [Hooked(2.0), Hooked(3.0)], nnx.jit(lambda net, x: net(x))
    nets.append(copy.deepcopy(nets[1]))
    assert isinstance(hash(nnx.graphdef(nets[0])), int), "a static argument of jax.jit"
    for x in (jnp.ones((1, 2)), jnp.zeros((1, 2))):
        for net, scale in zip(nets, (2, 3, 3), strict=True):
            np.testing.assert_array_equal(net(x), scale * x)
            np.testing.assert_array_equal(call(net, x), scale * x)


@pytest.mark.slow
def test_a_frozen_heap_hides_no_function():
    # gc.freeze() takes what is there out of every search for objects.
    gc.freeze()
    assert "def __call__(self, x):" in ported(habits.Started).source
    assert gc.get_freeze_count() > 0


COMPILED = """
import torch
from torch import nn


@torch.jit.script
def swish(x):
    return x * torch.sigmoid(x)


@torch.compile
def doubled(x):
    return 2 * x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return swish(doubled(self.linear(x)))
"""


@pytest.mark.slow
def test_what_torch_compiles_is_written_by_its_lines(tmp_path):
    (tmp_path / "compiled.py").write_text(COMPILED)
    command = [
        sys.executable,
        "-m",
        "jaxpar",
        "port",
        "compiled.py:Net",
        "--input",
        "2,3",
        "--out",
        "flax.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torch" not in (tmp_path / "flax.py").read_text().partition('"""\n')[2]
