"""benchmarks/gpu_programs.py finds a program that misses a bar."""

import dataclasses
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from gpu_programs import Case, Program, compiled, keep, kept, row

HELD = Program(count=13, sent=1000, overlap=0.9, temporary=1000, seconds=10.0)
BY_HAND, OURS = Case("mlp", 1024, "by hand"), Case("mlp", 1024, "DataParallel")
UNEVEN = dataclasses.replace(OURS, missing=1)
FEWER = dataclasses.replace(OURS, devices=8)

MISSES = [
    # case, what is planted, bar
    (OURS, {"count": 14}, "collectives"),
    (OURS, {"sent": 1001}, "bytes"),
    (OURS, {"overlap": 0.88}, "overlap"),
    (OURS, {"temporary": 1011}, "memory"),
    (OURS, {"seconds": 11.1}, "compilation"),
    (UNEVEN, {"temporary": 1101}, "memory"),
    (UNEVEN, {"seconds": 11.1}, "compilation"),
]


def missed(case, **planted):
    cases = (BY_HAND, OURS, UNEVEN, FEWER, dataclasses.replace(UNEVEN, devices=8))
    return row(case, dict.fromkeys(cases, HELD) | {case: dataclasses.replace(HELD, **planted)}).missed


@pytest.mark.parametrize("case", [OURS, UNEVEN])
def test_what_is_alike_misses_no_bar(case):
    assert missed(case) == []
    assert missed(case, overlap=0.895, temporary=1010, seconds=10.9) == []


@pytest.mark.parametrize(("case", "planted", "bar"), MISSES)
def test_a_planted_miss_is_found(case, planted, bar):
    assert missed(case, **planted) == [bar]


def test_programs_are_kept(tmp_path):
    file = tmp_path / "programs"
    assert kept(file) == {}
    keep(file, OURS, HELD)
    keep(file, UNEVEN, HELD)
    assert kept(file) == {OURS: HELD, UNEVEN: HELD}


def test_a_step_sends_what_one_by_hand_does():
    found = compiled(dataclasses.replace(OURS, devices=8))
    by_hand = compiled(dataclasses.replace(BY_HAND, devices=8))
    assert (found.count, found.sent) == (by_hand.count, by_hand.sent) == (1, 4 * (5_824_522 + 1))
