"""port: packed sequences are padded arrays with lengths. The reference is torch, through parity.compare."""

import pytest
import torch
from porting import sequences

from jaxpar import parity

LENGTHS = torch.tensor([2, 5, 1, 2])
"""In no order, with ties and a sequence of one step."""


@pytest.mark.slow
def test_a_packed_sequence_is_an_array_with_lengths():
    inputs = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    port = parity.port(sequences.All, inputs, LENGTHS)
    assert port.status == 0, f"{port.source}\n{port.holes}\n{port.failure}\n{port.comparison}"
    assert port.largest < 1e-10
    assert any("torch's has those of the longest sequence" in note for note in port.notes)
    assert "pack" not in port.source.split("class ", 1)[1].replace("packed", "").replace("Packed", "")


def test_what_an_array_cannot_be_is_a_hole():
    port = parity.port(sequences.Refused, torch.ones(5, 4, 3), LENGTHS)
    reasons = ("batch_first of the layer", "pad with zeros", "out: a packed sequence")
    assert [reason for reason in reasons if not any(reason in hole for hole in port.holes)] == []
    assert len(port.holes) == len(reasons)
