"""port: what libraries do and single files do not. The reference is torch, through parity.compare."""

import functools
import importlib

import pytest
import torch
from porting import kept_arguments, reasons, reasons_builders, records

from jaxpar import parity
from jaxpar.parity._port.translating import caches

NAMES = ("Initialized", "Images", "Biased", "Built", "Walked", "Records", "Asks", "Compared", "Registered")
FILES = (reasons, reasons_builders, records, kept_arguments)
KINDS = {name: next(getattr(file, name) for file in FILES if hasattr(file, name)) for name in NAMES}


@functools.cache
def ported(kind):
    generator = torch.Generator().manual_seed(0)
    return parity.port(kind, *(torch.randn(shape, generator=generator) for shape in kind.inputs))


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_reason_is_none(name):
    port = ported(KINDS[name])
    assert port.status == 0, f"{port.source}\n{port.holes}\n{port.failure}\n{port.comparison}"
    assert port.largest < 1e-10


@pytest.mark.slow
def test_a_type_that_is_a_constant_is_kept():
    """The proof in float64 leaves types out, so the text must be right."""
    source = ported(records.Rounded).source
    assert "return jnp.bfloat16" in source
    assert "self.linear(x.astype(self.dtype).astype(x.dtype))" in source


LEFT_OUT = {
    "Initialized": ("start", "rescale", "erfinv", "initialize", "dd", "hole", "use_fused"),
    "Images": ("Unused", "register", "get_norm", "is_cuda", "num_batches_tracked", "hole("),
    "Built": (
        "Unused",
        "def train",
        "Jupyter",
        "Shown",
        "__new__",
        "_start",
        "trunc_normal",
        "sdpa_kernel",
        "autocast",
    ),
    "Biased": ("not in self", "def train", "str(device)"),
    "Walked": ("hole(",),
    "Records": ("hole(", "partial("),
    "Registered": ("hole(", "named_parameters", "@register", "requires_grad"),
    "Compared": ("hole(", "self.weight", "self.out.weight", "[...] is", "else None) is"),
    "Asks": ("hole(", "memory_format", "is_exporting", "is_pinned"),
}
"""Initial values, registrations, choices that the constructor made, and what depends on the machine."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_file_has_what_the_model_reaches(name):
    source = ported(KINDS[name]).source
    body = source.split('"""', 2)[2]
    assert [word for word in LEFT_OUT[name] if word in body] == []


@pytest.mark.slow
def test_two_files_may_define_one_name():
    source = ported(reasons.Initialized).source
    assert "class Block(nnx.Module)" in source
    assert "class Block_2(nnx.Module)" in source


@pytest.mark.slow
def test_einops_stays():
    pytest.importorskip("einops")
    port = ported(importlib.import_module("porting.reasons_einops").Patches)
    assert port.same
    assert "from einops import rearrange, reduce" in port.source
    assert "partial(rearrange, pattern=" in port.source


@pytest.mark.slow
def test_arguments_are_those_before_the_constructor_changed_them():
    port = parity.port(lambda: reasons_builders.popping(), torch.ones(2, 4))
    assert port.build == "Popping(settings={'kind': 'scale', 'width': 4}, rngs=rngs)"
    assert port.same


@pytest.mark.parametrize("name", ["skips", "counts", "freezes"])
def test_a_train_that_does_more_is_noticed(name):
    """Planted: a child that stays in its mode, an attribute that changes, a parameter that is frozen."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.count = torch.nn.Linear(2, 2), 0

        def train(self, mode=True):
            if name == "skips":
                self.training = mode
                return self
            if name == "counts":
                self.count += 1000
            else:
                self.layer.weight.requires_grad_(mode)
            return super().train(mode)

    assert not caches._sets_modes(Net())
    assert caches._sets_modes(torch.nn.Sequential(torch.nn.Linear(2, 2)))
