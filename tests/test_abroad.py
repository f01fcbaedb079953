"""The table of models that others wrote, and its page. Neither needs transformers: `make abroad` does.

What the pairs say is on docs/tables/abroad.md, which is held here to the table and to its own counts.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # benchmarks is no installed package

from benchmarks.abroad import differences, page, pairs  # noqa: E402

PAGE = ROOT / "docs" / "tables" / "abroad.md"
LEAST = 30  # architectures, and the UNet and the VAE


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table, without its head."""
    return [
        [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines.splitlines()]
        for lines in re.findall(r"^\|[-|]+\|\n((?:\|.*\n?)*)", text, re.M)
    ]


def chapter(title: str) -> str:
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)
    return found


@pytest.mark.slow
def test_the_table_is_read_without_the_libraries():
    code = (
        "import sys; from benchmarks.abroad import page; print({'transformers', 'torch'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert shown.stdout == "set()\n"


def test_the_table_is_large_enough():
    families = {pair.classes[0] for pair in pairs.PAIRS if pair.library == "transformers"}
    assert len(families) >= LEAST
    assert {pair.classes[0] for pair in pairs.PAIRS if pair.library == "diffusers"} == {
        "UNet2DConditionModel",
        "AutoencoderKL",
    }
    assert len(pairs.BY_NAME) == len(pairs.PAIRS)


@pytest.mark.parametrize("pair", pairs.PAIRS, ids=lambda pair: pair.name)
def test_inputs_are_the_same_for_the_same_seed(pair):
    one, other = (pair.inputs(np.random.RandomState(0)) for _ in range(2))
    for mine, its in zip(one, other, strict=True):
        assert mine.keys() == its.keys()
        assert all(np.array_equal(mine[name], its[name]) for name in mine)


def test_differences_are_of_pairs_that_are_there():
    assert {name for each in differences.DIFFERENCES for name in each.pairs} <= pairs.BY_NAME.keys()


def test_the_page_has_every_row():
    rows = [row for table in tables(chapter("What can be trusted")) for row in table]
    assert [row[0] for row in rows] == [pair.name for pair in pairs.PAIRS]
    expected = {name for each in differences.DIFFERENCES for name in each.pairs}
    assert {row[0] for row in rows if row[1] == "different"} == expected
    assert all(row[1] == "different" or row[1].startswith("same") for row in rows)


def test_the_page_has_three_bugs_of_every_pair_that_was_asked_about_them():
    (rows,) = tables(chapter("Planted bugs"))
    asked = dict.fromkeys(row[0] for row in rows)
    assert [row[0] for row in rows] == [
        pair.name for pair in pairs.PAIRS if pair.name in asked for _ in range(3)
    ]
    counts = {row[0]: row[1] for row in tables(chapter("In short"))[0]}
    assert counts["with bugs planted in them"] == f"{len(asked)} of {sum(bool(p.bugs) for p in pairs.PAIRS)}"
    assert all(row[2] == "yes" for row in rows), "a bug that was not caught"


def test_the_counts_are_those_of_the_rows():
    (rows,) = tables(chapter("Planted bugs"))
    counts = {row[0]: row[1] for row in tables(chapter("In short"))[0]}
    for column, words in enumerate(page.BUG_KEYS.values(), start=2):
        assert counts[f"bugs {words}"] == f"{sum(row[column] == 'yes' for row in rows)} of {len(rows)}"


def test_every_difference_has_its_section():
    text = chapter("Differences in their code")
    assert re.findall(r"^### (.*)$", text, re.M) == [each.title for each in differences.DIFFERENCES]
