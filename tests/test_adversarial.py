"""Edited pairs: a comparison is different, or lists the edit. docs/tables/adversarial.md has 60 of them."""

from __future__ import annotations

import random

import pytest

from benchmarks.parity import adversarial, edited

DRAWN = random.Random(7).sample(edited.frame(), 4)  # the table's seed is 33
KNOWN = {
    "a constant by 1 %, torch": "the same, and listed",  # a bound between the numbers
    "another axis, torch": "different",
    "a clip, JAX": "the same, and listed",
    "amax for max, torch": "the same, and listed",
}


@pytest.mark.full
@pytest.mark.parametrize("case", DRAWN, ids=range(len(DRAWN)))
def test_an_edit_is_seen_or_listed(case, tmp_path):
    answer, sentence = adversarial.outcome(case, tmp_path)
    assert answer in adversarial.OUTCOMES[:3], (case.title, sentence)


@pytest.mark.parametrize("name", KNOWN)
def test_the_answer_on_an_edit(name, tmp_path):
    change = next(change for change in edited.changes("routed") if change.name == name)
    assert adversarial.outcome(edited.Edited("routed", (change,)), tmp_path)[0] == KNOWN[name]


@pytest.mark.parametrize("pair", edited.PAIRS)
def test_a_pair_without_an_edit_is_the_same(pair, tmp_path):
    unedited = edited.Change("none", "torch", 1, edited.source(pair, "torch"), "")
    answer = adversarial.outcome(edited.Edited(pair, (unedited,)), tmp_path)[0]
    assert answer == "the same, and not listed"  # nothing is on line 1
