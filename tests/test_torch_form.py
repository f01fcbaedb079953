"""docs/tables/torch_form.md is what benchmarks/torch_form.py prints for the tables of the tests."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "tables" / "torch_form.md").read_text()

spec = importlib.util.spec_from_file_location("torch_form", ROOT / "benchmarks" / "torch_form.py")
torch_form = importlib.util.module_from_spec(spec)
spec.loader.exec_module(torch_form)


def rows(text: str) -> list[list[str]]:
    lines = re.findall(r"^\| (.*) \|$", text, re.M)
    return [line.split(" | ") for line in lines if not line.startswith("torch | jaxpar")]


def check(text: str) -> None:
    """One row for each case and each refusal, in order; every number within the bar."""
    expected = []
    for module in torch_form.tables([]).values():
        refused = sorted(module.REFUSED, key=lambda row: not row.torch_too)
        expected += [torch_form.cells(row) for row in [*module.CASES, *refused]]
    found = rows(text)
    for (theirs, ours, *_), want in zip(found, expected, strict=False):
        assert (theirs, ours) == want, "not what the tables say; print the page again"
    assert len(found) == len(expected), "a row is missing, or one too many; print the page again"
    for theirs, ours, *_, last in found:
        assert "FAILS" not in last, (theirs, ours)
        if "Error: " not in last:
            assert float(last) <= 1e-12, (theirs, ours, last)


def test_the_page_is_what_the_tables_say():
    check(PAGE)


FAULTS = {
    "a row removed": (r"^\| `LayerNorm\(\(4, 6\)\)`.*\n", "", "print the page again"),
    "a row twice": (r"^(\| `LayerNorm\(\(4, 6\)\)`.*\n)", r"\1\1", "print the page again"),
    "another option": (
        r"`RMSNorm\(\(3, 2, 6\), 1e-3\)`",
        "`RMSNorm((3, 2, 6), 1e-4)`",
        "what the tables say",
    ),
    "a number": (r"^(\| `LayerNorm\(\(4, 6\)\)`.*) \S+ \|$", r"\1 3e-09 |", "3e-09"),
    "a failure": (r"^(\| `LayerNorm\(\(4, 6\)\)`.*) \S+ \|$", r"\1 **FAILS**: why |", "LayerNorm"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    pattern, replacement, message = FAULTS[fault]
    text, changes = re.subn(pattern, replacement, PAGE, count=1, flags=re.M)
    assert changes
    with pytest.raises(AssertionError, match=message):
        check(text)
