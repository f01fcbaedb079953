"""The page of all layers has a row for each case and each refusal of the tables of the tests."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("torch_form", ROOT / "benchmarks" / "torch_form.py")
torch_form = importlib.util.module_from_spec(spec)
spec.loader.exec_module(torch_form)


def rows(text: str) -> list[list[str]]:
    """The cells of each row, without the heads of tables."""
    lines = re.findall(r"^\| (.*) \|$", text, re.M)
    return [line.split(" | ") for line in lines if not line.startswith(("torch | jaxpar", "---"))]


@pytest.mark.full
def test_the_page_has_a_row_for_each_case_and_refusal():
    expected = []
    for module in torch_form.tables([]).values():
        refused = sorted(module.REFUSED, key=lambda row: not row.torch_too)
        expected += [torch_form.cells(row) for row in [*module.CASES, *refused]]
    text = "\n".join(torch_form.lines([], measure=False))
    assert [(torch, ours) for torch, ours, *_ in rows(text)] == expected
    assert torch_form.FAILS not in text


@pytest.mark.long
@pytest.mark.full
def test_differences_are_measured():
    text = "\n".join(torch_form.lines(["activations"]))
    measured = [cells[3] for cells in rows(text) if len(cells) == 4]
    assert len(measured) == len(torch_form.tables(["activations"])["activations"].CASES)
    assert all(0 <= float(number) <= 1e-12 for number in measured)


def test_a_planted_wrong_layer_fails():
    case = torch_form.tables(["norms"])["norms"].CASES[0]
    assert torch_form.FAILS not in torch_form.measured(case)
    assert torch_form.FAILS in torch_form.measured(
        dataclasses.replace(case, torch="LayerNorm((4, 6), eps=0.1)")
    )


def test_an_unknown_table_is_refused():
    with pytest.raises(SystemExit, match="no table"):
        list(torch_form.lines(["nothing"]))
