"""Mechanical edits: what a comparison answers on them, and the check that calls an edit equivalent."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.parity import drawn, equivalence, syntax_edits
from benchmarks.parity.edited import PAIRS, Change, Edited, source


def change(side: str, before: str, after: str, pair: str) -> Change:
    text = source(pair, side)
    assert text.count(before) == 1
    line = text[: text.index(before)].count("\n") + 1
    return Change("changed", side, line, text.replace(before, after), "")


SAME = change("jax", "jnp.tanh(0.75 * x)", "jnp.tanh(x * 0.75)", "one_row")
FACTOR = change("jax", "0.75", "0.76", "one_row")
SLOPE = change("torch", "0.75", "0.76", "one_row")
TARGET = change("torch", "ignore_index=-1", "ignore_index=1", "one_row")


@pytest.mark.full
@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ((SAME,), drawn.EQUIVALENT),
        ((FACTOR,), drawn.DIFFERENT),
        ((SLOPE, FACTOR), drawn.ALIKE),
        ((TARGET,), drawn.LISTED),
        ((change("jax", "jnp.tanh(", "jnp.tan_h(", "one_row"),), drawn.UNRUN),
    ],
    ids=["equivalent", "different", "alike", "listed", "unrun"],
)
def test_the_answer_on_an_edit(changes, outcome, tmp_path):
    assert drawn.answer(Edited("one_row", changes), tmp_path).outcome == outcome


def test_a_same_that_is_neither_equivalent_nor_listed_is_wrong():
    class Comparison:
        unreached = ("torch's code in torch_side.py:99",)

    assert drawn.of_same(Edited("one_row", (FACTOR,)), Comparison()).outcome == drawn.WRONG


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pair", ["one_row", "trained"])
def test_equal_texts_are_equivalent_and_the_sides_alike(pair):
    texts = {side: source(pair, side) for side in syntax_edits.SIDES}
    assert all(equivalence.are_equivalent(text, text, side, pair) for side, text in texts.items())
    assert equivalence.are_alike(texts, pair)


@pytest.mark.parametrize(
    ("side", "before", "after"),
    [
        ("torch", "eps=1e-8", "eps=2e-8"),
        ("jax", "eps=1e-8", "eps=2e-8"),
        ("torch", "F.relu(", "F.relu6("),
        ("jax", "nnx.relu(", "nnx.relu6("),
    ],
)
def test_an_edit_that_few_inputs_show_is_not_equivalent(side, before, after):
    edit = change(side, before, after, "trained")
    assert not equivalence.are_equivalent(source("trained", side), edit.source, side, "trained")


def test_a_seed_draws_the_same_edits_and_each_parses():
    first, again = (list(itertools.islice(syntax_edits.draw(3), 40)) for _ in range(2))
    assert first == again
    assert len(set(first)) == 40
    assert {len(case.changes) for case in first} == {1, 2}
    for case in first:
        for edit in case.changes:
            assert edit.source != source(case.pair, edit.side)
            assert syntax_edits.parses(edit.source)


@pytest.mark.parametrize("pair", PAIRS)
def test_an_edit_changes_one_line(pair):
    for side in syntax_edits.SIDES:
        before = source(pair, side).splitlines()
        for edit in syntax_edits.edits(source(pair, side), side):
            lines = edit.source.splitlines()
            assert [i for i, (a, b) in enumerate(zip(before, lines, strict=True), 1) if a != b] == [edit.line]
