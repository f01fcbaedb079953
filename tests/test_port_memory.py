"""port: what modules keep between calls is computed in each call, or is a hole. The reference is torch."""

import functools

import pytest
import torch
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
REMEMBERED = ("FromTheFirst", "Longest", "Chosen", "Partly", "ReadElsewhere")


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


def test_an_array_that_nothing_reads_is_left_out_with_a_note():
    notes = [note.partition(": ")[2] for note in ported("Shown").notes]
    assert notes == [
        "self.scores = scores: no line reads self.scores, so it is left out",
        "self.attention = attention.detach(): no line reads self.attention, so it is left out",
    ]


def test_two_attributes_of_one_array_are_a_hole_as_each_is():
    assert any("self.doubled = self.twice = y + y" in hole for hole in ported("ReadElsewhere").holes)


@pytest.mark.parametrize(
    ("name", "remembered"), [("Guarded", False), ("Keyed", False), ("FromTheFirst", True), ("Longest", True)]
)
def test_earlier_calls_change_the_outputs(name, remembered):
    kind = getattr(memories, name)
    assert remembers(kind, tuple(map(torch.ones, kind.inputs)), {}) is remembered
