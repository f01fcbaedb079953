"""The page of three models beside their ports: printed from the ports, and every port proven."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

sys.path.insert(0, str(ROOT / "benchmarks"))
import side_by_side  # noqa: E402


@pytest.mark.slow
def test_the_page_is_what_the_port_writes(monkeypatch):
    monkeypatch.setattr("jaxpar.parity._port.port.prove", lambda *args, **kwargs: [])
    assert (ROOT / "docs" / "side_by_side.md").read_text() == side_by_side.page(), (
        "print it anew: python benchmarks/side_by_side.py > docs/side_by_side.md"
    )


@pytest.mark.long
@pytest.mark.timeout(1800)  # of a machine that has much else to do
@pytest.mark.parametrize("model", side_by_side.MODELS, ids=lambda model: model.title)
def test_every_model_of_the_page_is_the_same(model):
    port = side_by_side.ported(model)
    assert port.same, f"{port.failure}\n{port.comparison}"
    assert port.largest < 1e-10
    for lines in side_by_side.lines_of(port, model.optimizer) if model.optimizer else ():
        assert lines.same, lines.comparison
