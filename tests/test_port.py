"""port: torch modules become Flax files that are the same. The reference is torch, through parity.compare."""

import inspect

import pytest
import torch
from porting import modules

from jaxpar import parity

CASES = [kind for kind in vars(modules).values() if inspect.isclass(kind) and hasattr(kind, "inputs")]


def example(kind):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in kind.inputs]


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_ports_are_the_same(kind):
    port = parity.port(kind, *example(kind))
    assert not port.holes
    assert port.same, f"{port.source}\n{port.comparison}"
    assert port.largest < 1e-10
