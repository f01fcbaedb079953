"""The proof at the size of tests: healthy twins are the same, planted bugs are different and named.

The whole of it, at the size of real models, is `python benchmarks/parity/run.py`; its page is held here to
the tables it was printed from.
"""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # benchmarks is no installed package

from benchmarks.parity import architectures, bugs, fixed, layers, page, proof  # noqa: E402
from benchmarks.parity.case import Case  # noqa: E402

pytestmark = [  # torch on its own functions, the last one called wrongly by the catalogue
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss"),
]

SMALL = architectures.cases(small=True)
EVERYDAY = {
    "MLP",
    "LeNet-5, Linen",
    "VGG-11-BN",
    "DCGAN, generator",
    "LSTM language model",
    *(cases[0].name for cases in layers.SECTIONS.values()),
    "LayerNorm epsilon 1e-6",
    "BatchNorm, biased running variance",
    "GELU, tanh's form",
    "flatten in Flax's order",
    "padding SAME for 1, stride 2",
    "align_corners=False",
    "Dropout 0.5 for 0.25",
    "square kernel transposed",
    "bias used twice",
    "mask polarity",
    "LSTM with one bias",
    "label smoothing over the other classes",
    "l2_loss with its 1/2",
    "AdamW, optax's weight_decay",
    "tanh's gelu by hand, exact",
    "positions from 1, in [B, S]",
    "window, one key more",
    "query, key and value by head",
    "two linear layers exchanged",
}
"""One of each kind; `make test` has a sixth of the others, and `make proof` all of them."""

TWINS = {bug.healthy.name: bug.healthy for bug in bugs.BUGS}


def table(rows, marks=(pytest.mark.slow, *[pytest.mark.long] * 5)):
    """Parameters for a law, with the marks in turn on all but those of everyday."""
    marks = itertools.cycle([[mark] for mark in marks])
    return [pytest.param(row, id=row.name, marks=[] if row.name in EVERYDAY else next(marks)) for row in rows]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", table([*layers.CASES, *SMALL]))
def test_healthy_twins_are_the_same(case: Case):
    answer = proof.ask(case)
    assert answer.same, f"{answer.where}: {answer.relative:.2g}; {answer.layer} {answer.causes}"
    assert answer.tensors >= 2


@pytest.mark.sampled(3)
@pytest.mark.full
@pytest.mark.parametrize("bug", table(bugs.BUGS))
def test_planted_bugs_are_different_and_named(bug):
    answer = proof.ask(bug.case)
    assert not answer.same
    assert bug.cause is None or page.named(bug, answer), f"{bug.cause} is not in {answer.causes}"


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "twin", {bug.healthy.name: bug.healthy for bug in bugs.BUGS}.values(), ids=lambda c: c.name
)
def test_bugs_are_planted_in_healthy_twins(twin):
    assert proof.ask(twin).same


@pytest.mark.parametrize("case", table([*layers.CASES, *SMALL], [pytest.mark.long]))
def test_no_false_alarm_at_the_numeric_level(case: Case):
    answer = proof.ask(case, "numeric", seed=1)
    assert answer.same, f"{answer.where}: {answer.ratio_rms:.2f} {answer.ratio_max:.2f}"


def named(name: str, rows) -> object:
    return next(row for row in rows if row.name == name)


@pytest.mark.full
def test_fixed_tolerances_miss_and_alarm():
    epsilon = named("LayerNorm epsilon 1e-6", bugs.BUGS)
    assert fixed.passes(epsilon.case)["allclose 1e-4"]
    assert not any(fixed.passes(named("flatten in Flax's order", bugs.BUGS).case).values())
    assert all(fixed.passes(named("Linear", layers.CASES)).values())


# ------------------------------------------------------------------------------------------- the page

PAGE = ROOT / "docs" / "tables" / "parity_proof.md"


def rows(heading: str) -> list[list[str]]:
    """The cells of all tables of a chapter, without their heads."""
    (chapter,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)
    tables = re.findall(r"^\|[-|]+\|\n((?:\|.*\n?)*)", chapter, re.M)
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        for text in tables
        for row in text.splitlines()
    ]


def test_the_page_has_every_row_and_no_failure():
    models = [case.name for case in SMALL]
    assert [row[0] for row in rows("Layers")] == [case.name for case in layers.CASES]
    assert [row[0] for row in rows("Architectures")] == models
    assert [row[0] for row in rows("Planted bugs")] == [bug.name for bug in bugs.BUGS]
    assert [row[0] for row in rows("The numeric level")] == [*(case.name for case in layers.CASES), *models]
    healthy = rows("Layers") + rows("Architectures") + rows("The numeric level")
    assert all(row[1] == "same" for row in healthy)
    assert all(row[1] == "different" for row in rows("Planted bugs"))
    assert "**not named**" not in PAGE.read_text()


def test_the_proof_is_as_large_as_it_says():
    assert len(layers.CASES) >= 40
    assert len(SMALL) >= 12
    assert len(bugs.BUGS) >= 25
    assert len({row.name for row in [*layers.CASES, *SMALL, *bugs.BUGS]}) == len(
        layers.CASES + SMALL + bugs.BUGS
    )
