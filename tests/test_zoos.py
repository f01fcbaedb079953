"""The table of models of JAX libraries, its frame and its page, docs/tables/zoos.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # benchmarks is no installed package

from benchmarks.zoos import frame, libraries, page  # noqa: E402

PAGE = (ROOT / "docs" / "tables" / "zoos.md").read_text()


def chapter(title: str) -> list[list[str]]:
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    (lines,) = re.findall(r"^\|[-|]+\|\n((?:\|.*\n?)*)", text, re.M)
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines.splitlines()]


@pytest.mark.slow
def test_the_table_is_read_without_the_libraries():
    code = (
        "import sys; from benchmarks.zoos import page; print({'jax', 'torch', 'equinox'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert shown.stdout == "set()\n"


def test_pairs_and_reasons_are_of_the_frame():
    assert len(frame.FRAME) == len(set(frame.FRAME))
    files = {pair.file for pair in libraries.PAIRS}
    assert files <= set(frame.FRAME)
    assert frame.REASONS.keys() <= set(frame.FRAME) - files


@pytest.mark.parametrize("pair", libraries.PAIRS, ids=lambda pair: pair.name)
def test_inputs_are_the_same_for_the_same_seed(pair):
    assert np.array_equal(*(pair.inputs(np.random.RandomState(0)) for _ in range(2)))
    assert bool(pair.cure) <= bool(pair.why), "a cure needs its reason"
    assert pair.cure or not pair.why or "No setting of torch's layers" in pair.why


def test_the_page_has_the_frame_and_the_verdicts_of_its_rows():
    assert [row[0] for row in chapter("The frame")] == list(frame.FRAME)
    rows = chapter("What was said")
    expected = {pair.name: "different" if pair.why else "same" for pair in libraries.PAIRS}
    assert all(row[1].strip("*").startswith((expected[row[0]], "none")) for row in rows)


def test_the_counts_are_those_of_the_rows():
    counts = dict(chapter("In short"))
    assert counts["asked"] == str(len(chapter("What was said")))
    bugs = chapter("Planted bugs")
    for column, words in enumerate(page.BUG_KEYS.values(), start=2):
        assert counts[f"bugs {words}"] == f"{sum(row[column] == 'yes' for row in bugs)} of {len(bugs)}"
