"""port: models of a library with a runtime around them. The reference is torch, through parity.compare."""

import ast
import functools
import re

import numpy as np
import pytest
import torch
from porting.library.models import tiny

from jaxpar import parity
from jaxpar.parity._port import writing
from jaxpar.parity._port.reading import runtime
from jaxpar.parity._port.reading.source import Source
from jaxpar.parity._port.rules import transformers_names

RUNTIME = ("Cache", "ALL_ATTENTION_FUNCTIONS", "TinySdpaAttention", "check_model_inputs", "logger")
"""What no ported file says outside of its texts."""
PADDING = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


@pytest.fixture(autouse=True)
def library(monkeypatch):
    """Our small library in the place of transformers."""
    monkeypatch.setattr(transformers_names, "LIBRARY", "porting.library")


def decoder():
    return tiny.TinyModel(tiny.TinyConfig(width=4, attn_implementation="eager"))


def windowed():
    return tiny.TinyModel(tiny.TinyConfig(width=4, sliding_window=2))


def encoder():
    return tiny.TinyEncoder(tiny.TinyConfig(width=4))


def cross():
    return tiny.TinyCross(tiny.TinyConfig(width=4))


CASES = {
    "a variable of the runtime": (cross, {}),
    "a causal mask": (decoder, {}),
    "a causal mask and padding": (decoder, {"attention_mask": PADDING}),
    "a sliding window": (windowed, {"attention_mask": PADDING}),
    "masks from the base class": (encoder, {"attention_mask": PADDING}),
}


@functools.cache
def ported(name):
    make, kwargs = CASES[name]
    inputs = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    return parity.port(lambda: make(), inputs, **kwargs)


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_models_of_a_library_are_the_same(name):
    port = ported(name)
    assert port.status == 0, f"{port.source}\n{port.failure}\n{port.comparison}"
    assert port.largest < 1e-10
    assert not {node.id for node in ast.walk(ast.parse(port.source)) if isinstance(node, ast.Name)} & {
        *RUNTIME
    }


@pytest.mark.slow
def test_what_did_not_run_and_needs_the_runtime_raises():
    port = ported("a causal mask")
    refused = [line for line in port.source.splitlines() if "raise NotImplementedError" in line]
    assert len(refused) == 3, "the cache, made and used, and another attention"
    assert "left out: @check_model_inputs" in port.notes
    assert "post_init" not in port.source
    assert "Initialize" not in port.source
    with pytest.raises(NotImplementedError, match=r"tiny.py:\d+ is not ported"):
        port.module(torch.ones(1, 2, 4).numpy(), use_cache=True)


@pytest.mark.slow
def test_settings_are_imported_and_can_be_hashed():
    port = ported("a causal mask")
    assert "from porting.library.models.tiny import TinyConfig" in port.source
    build = "TinyModel(config=TinyConfig(width=4, attn_implementation='eager'), rngs=rngs)"
    assert port.build == f"initial_values({build}, 0)"
    assert isinstance(hash(port.module.config), int)


@pytest.mark.slow
def test_a_variable_that_no_written_line_assigns_raises():
    port = ported("a variable of the runtime")
    assert any("is_updated: no line that ran assigns it" in note for note in port.notes)
    assert np.asarray(port.module(torch.ones(1, 2, 4).numpy())).shape == (1, 4)
    with pytest.raises(NotImplementedError, match=r"not ported: tiny.py:\d+: is_updated"):
        port.module(torch.ones(1, 2, 4).numpy(), past_key_values=1)


ANNOTATED = {
    "inputs_embeds: jax.Array,": "torch's",
    "attention_mask=None,": "of a name that is there for a type checker alone",
    "past_key_values=None,": "of the runtime",
    "weights=None,": "a text",
    'mode: Literal["sum", "mean"] = "sum",': "values, and not names",
}


@pytest.mark.slow
@pytest.mark.parametrize("line", ANNOTATED)
def test_annotations_in_quotes_name_what_is_there(line):
    assert line in re.sub(r"\s+", " ", ported("a variable of the runtime").source)


FAULTS = {
    "a window that is longer by one": ("q_idx - config", "q_idx - 1 - config", "a sliding window"),
    "another gelu": ('"gelu": partial(nnx.gelu, approximate=False)', '"gelu": nnx.gelu', "a causal mask"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_stand_in_is_seen_by_the_proof(fault, tmp_path, monkeypatch):
    right, wrong, name = FAULTS[fault]
    path = tmp_path / "stand_ins.py"
    general, of_transformers = runtime.stand_in_sources()
    text = of_transformers.text
    assert right in text
    path.write_text(text.replace(right, wrong))
    planted = Source(str(path))
    monkeypatch.setattr(writing, "stand_in_sources", lambda: (general, planted))
    assert ported.__wrapped__(name).status == 1
