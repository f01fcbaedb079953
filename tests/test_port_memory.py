"""port: what modules keep between calls is computed in each call, or is a hole. The reference is torch."""

import functools
import re

import jax.numpy as jnp
import pytest
import torch
from flax import nnx
from porting import memories

from jaxpar import parity
from jaxpar.parity._port.proof import remembers

FORGOTTEN = {
    "Contexts": ("self.table",),
    "Guarded": ("self.distances", "if "),
    "Rotary": ("_length", "self._s", "self._c", "if "),
    "Early": ("self.angles", "if "),
    "Returned": ("self.mask", "self.scales", "None", "if "),
    "Shown": ("self.scores", "self.attention", "scores: ", "stop_gradient"),
    "Keyed": ("self.tables", "self.ramps", "lru_cache", "functools", "is None"),
}
"""By class: what its file does not have."""
WITHIN_CALL = {
    "Chosen": ("table",),
    "Reversible": ("deviation", "mean", "weights"),
}
"""By class: the attributes of no state that other methods and modules read."""
REMEMBERED = ("FromTheFirst", "Longest", "Partly", "FromTraining")


@functools.cache
def ported(name):
    kind, generator = getattr(memories, name), torch.Generator().manual_seed(0)
    return parity.port(kind, *(torch.randn(shape, generator=generator) for shape in kind.inputs))


@pytest.mark.full
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FORGOTTEN)
def test_a_table_of_shapes_is_computed_in_each_call(name):
    port = ported(name)
    assert port.status == 0, f"{port.source}\n{port.holes}\n{port.failure}\n{port.comparison}"
    assert port.largest < 1e-10
    body = port.source.split('"""', 2)[2]
    assert [text for text in FORGOTTEN[name] if text in body] == []


@pytest.mark.full
@pytest.mark.parametrize("name", REMEMBERED)
def test_what_may_come_from_earlier_calls_is_a_hole(name):
    port = ported(name)
    assert port.status == 2
    assert all("it keeps an array in the module" in hole for hole in port.holes)
    assert "dd = " not in port.source


@pytest.mark.full
@pytest.mark.parametrize("name", WITHIN_CALL)
def test_what_a_call_sets_before_others_read_it_is_an_attribute_of_no_state(name):
    port = ported(name)
    assert port.status == 0, f"{port.source}\n{port.holes}\n{port.failure}\n{port.comparison}"
    assert port.largest < 1e-10
    assert re.findall(r"^    (\w+) = WithinCall\(\)$", port.source, re.MULTILINE) == [*WITHIN_CALL[name]]
    assert "dd = " not in port.source


def test_a_compiled_call_starts_without_what_an_earlier_one_has_set():
    net = ported("Reversible").module
    net(jnp.ones((2, 5, 4)))
    assert net.norm.mean is not None
    assert nnx.jit(lambda net: net.norm.mean is None)(net)
    with pytest.raises(TypeError):
        nnx.jit(lambda net, x: net.norm(x, "denorm"))(net, jnp.ones((2, 5, 4)))


def test_counts_that_no_line_reads_are_left_out_with_a_note():
    notes = [note.partition(": ")[2] for note in ported("Reversible").notes if "not counted" in note]
    assert notes == [
        "self.calls += 1: no line that ran reads self.calls, so it is not counted",
        "self.seen = self.seen + len(x): no line that ran reads self.seen, so it is not counted",
    ]


def test_a_count_that_a_line_reads_is_a_hole():
    assert [hole.partition(": ")[2] for hole in ported("Warms").holes] == [
        "self.calls += 1: it counts in the module, where a compiled step would not"
    ]


def test_an_array_that_nothing_reads_is_left_out_with_a_note():
    notes = [note.partition(": ")[2] for note in ported("Shown").notes]
    assert notes == [
        "self.scores = scores: no line reads self.scores, so it is left out",
        "self.attention = attention.detach(): no line reads self.attention, so it is left out",
    ]


def test_two_attributes_of_one_array_are_a_hole_as_each_is():
    assert any("self.doubled = self.twice = y + y" in hole for hole in ported("ReadElsewhere").holes)


@pytest.mark.parametrize(
    ("name", "remembered"),
    [
        *(("Guarded", False), ("Keyed", False), ("Reversible", False)),
        *(("FromTheFirst", True), ("Longest", True), ("FromTraining", True)),
    ],
)
def test_earlier_calls_change_the_outputs(name, remembered):
    kind = getattr(memories, name)
    assert remembers(kind, tuple(map(torch.ones, kind.inputs)), {}) is remembered
