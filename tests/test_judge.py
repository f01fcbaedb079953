"""judge: one table of differences and what they mean, at every level and on both sides of every bound."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from jaxpar.parity.measuring import Difference, Judged, Kind, Level, Outcome, Policy, judge, measure

SAME, WORSE, _, NOISE, DIFFERENT = Outcome
SEMANTIC, NUMERIC, TRAJECTORY, _ = (Policy(level) for level in Level)


def difference(name="x", kind=Kind.GRADIENT, **changes) -> Difference:
    """A float tensor that is equal on both sides, with changes."""
    equal = Difference(
        kind=kind, name=name, step=1, shape=(10**8,), dtype="float32", max_abs=0.0, max_rel=0.0, relative=0.0,
        rms=0.0, ulp=0, index=(0,), candidate=1.0, reference=1.0, magnitude=1.0,
    )  # fmt: skip
    return dataclasses.replace(equal, **changes)


def ratios(rms, most, unit=2.0**-24, **changes):
    return difference(max_abs=1e-7, relative=1e-7, ratio_rms=rms, ratio_max=most, unit=unit, **changes)


def relative(size, **changes):
    return difference(max_abs=size, relative=size, max_rel=math.inf, ulp=10**9, **changes)


CASES = {
    # name: (policy, difference, outcome, what the reason says)
    "equal": (SEMANTIC, difference(), SAME, ""),
    "rounding": (SEMANTIC, relative(3e-15), SAME, ""),
    "at the bound": (SEMANTIC, relative(1e-10), SAME, ""),
    "an epsilon of RMSNorm": (SEMANTIC, relative(5.8e-7), DIFFERENT, "relative 5.8e-07 is above 1e-10"),
    "just above the bound": (SEMANTIC, relative(1.001e-10), DIFFERENT, "above 1e-10"),
    "not a number": (SEMANTIC, relative(math.nan), DIFFERENT, "relative nan"),
    "a fault": (SEMANTIC, difference(fault="only in the candidate"), DIFFERENT, "only in the candidate"),
    "a fault, numeric": (NUMERIC, difference(fault="1 of 2 values differ"), DIFFERENT, "1 of 2 values"),
    "an override": (
        Policy(overrides=(("*.lr", 1e-6), ("*", 1e-10))), relative(1e-7, name="adam.lr"), SAME, "",
    ),
    "another's override": (Policy(overrides=(("*.lr", 1e-6),)), relative(1e-7), DIFFERENT, "above 1e-10"),
    "healthy": (NUMERIC, ratios(0.9, 0.74), SAME, ""),
    "the worst healthy one": (NUMERIC, ratios(3.14, 3.51), WORSE, "its error is 3.51 x the reference's own"),
    "below the warning": (NUMERIC, ratios(1.99, 1.99), SAME, ""),
    "the warning": (NUMERIC, ratios(1.0, 2.0), WORSE, "2 x"),
    "at both bounds": (NUMERIC, ratios(4.0, 6.0), WORSE, "6 x"),
    "above the first": (NUMERIC, ratios(4.1, 1.0), DIFFERENT, "4.1 x the reference's own (RMS), above 4"),
    "above the second": (NUMERIC, ratios(1.0, 6.1), DIFFERENT, "6.1 x the reference's own (maximum), above"),
    "one step": (TRAJECTORY, ratios(1.2, 3.6, kind=Kind.UPDATE), WORSE, "3.6 x"),
    "one wrong step": (TRAJECTORY, ratios(7.0, 3.6, kind=Kind.UPDATE), DIFFERENT, "7 x"),
    "half, at its bounds": (NUMERIC, ratios(4.0, 10.0, 2.0**-8), WORSE, "10 x"),
    "half, above": (NUMERIC, ratios(1.0, 10.1, 2.0**-8), DIFFERENT, "above 10"),
    "TensorFloat32": (NUMERIC, ratios(1.0, 9.0, 2.0**-11), WORSE, "9 x"),
    "a thousand elements": (NUMERIC, ratios(4.02, 6.02, shape=(10, 100)), WORSE, "6.02 x"),
    "a thousand, above": (NUMERIC, ratios(4.05, 1.0, shape=(10, 100)), DIFFERENT, "above 4.04"),
    "ten elements": (NUMERIC, ratios(9.9, 14.9, shape=(2, 5)), WORSE, "14.9 x"),
    "ten elements, above": (NUMERIC, ratios(10.1, 1.0, shape=(2, 5)), DIFFERENT, "above 10"),
    "one element": (NUMERIC, ratios(29.0, 29.0, shape=()), WORSE, "29 x"),
    "one element, above": (NUMERIC, ratios(31.0, 1.0, shape=()), DIFFERENT, "above 30"),
    "infinite": (NUMERIC, ratios(math.inf, math.inf), DIFFERENT, "inf x"),
    "not a number, numeric": (NUMERIC, ratios(math.nan, 1.0), DIFFERENT, "nan x"),
    "integers": (NUMERIC, difference(ulp=None), SAME, ""),
    "zeros on both sides": (SEMANTIC, difference(magnitude=0.0), SAME, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_outcome(case):
    policy, d, outcome, reason = CASES[case]
    (row,) = judge([d], policy)
    assert (row.outcome, row.difference) == (outcome, d)
    assert reason in row.reason
    assert (row.reason == "") == (outcome is SAME)
    assert (row.severity > 1) == (outcome is DIFFERENT)


WHY = {"bias": "its gradient is noise"}


def beside(size, kind=Kind.GRADIENT, policy=SEMANTIC, noise=WHY, magnitude=1e-17, **changes):
    """The verdict on a tensor of no size of its own, beside a gradient of size 1 (weight)."""
    small = difference("bias", kind, max_abs=size, relative=math.inf, magnitude=magnitude, **changes)
    others = [difference("weight", kind, ratio_rms=0.0, ratio_max=0.0, unit=2.0**-24)]
    elsewhere = [difference("weight", Kind.OUTPUT, magnitude=1e30, ratio_rms=0.0, ratio_max=0.0)]
    return judge([small, *others, *elsewhere], policy, noise)[0]


ALONE = {
    # name: (verdict, outcome, reason)
    "noise on both sides": (beside(2e-17), NOISE, "its gradient is noise"),
    "no noise in the candidate": (
        beside(0.1), DIFFERENT, "its gradient is noise, but the candidate is 0.1 away: 0.1 of the l",
    ),
    "just above": (beside(1.1e-10), DIFFERENT, "above 1e-10"),
    "its update": (beside(1e-3, Kind.UPDATE), NOISE, "its gradient is noise"),
    "its weight": (beside(1e-3, Kind.WEIGHT), NOISE, "its gradient is noise"),
    "its input gradient": (beside(1e-3, Kind.INPUT_GRADIENT), DIFFERENT, "relative inf"),
    "its output": (beside(1e-3, Kind.OUTPUT), DIFFERENT, "relative inf"),
    "its state": (beside(1e-3, Kind.STATE), DIFFERENT, "relative inf"),
    "its loss": (beside(1e-3, Kind.LOSS), DIFFERENT, "relative inf"),
    "a fault of its update": (beside(0.0, Kind.UPDATE, fault="shape"), DIFFERENT, "shape"),
    "numeric": (beside(2e-6, policy=NUMERIC, unit=2.0**-24, ratio_rms=50.0, ratio_max=50.0), NOISE, "noise"),
    "numeric, too large": (
        beside(1e-4, policy=NUMERIC, unit=2.0**-24, ratio_rms=50.0, ratio_max=50.0), DIFFERENT, "but the",
    ),
    "exactly zero in the reference": (beside(1e-17, noise={}, magnitude=0.0), SAME, "exactly 0 in the"),
    "only zero in the reference": (beside(1e-3, noise={}, magnitude=0.0), DIFFERENT, "is 0.001 away"),
}  # fmt: skip


@pytest.mark.parametrize("case", ALONE)
def test_a_tensor_without_a_size_of_its_own(case):
    row, outcome, reason = ALONE[case]
    assert row.outcome is outcome
    assert reason in row.reason


@pytest.mark.parametrize(("gradient", "outcome"), [(0.0, DIFFERENT), (1e-17, NOISE)])
def test_an_update_is_judged_where_the_gradients_are_the_same(gradient, outcome):
    """A weight decay on one side only, for a parameter that nobody uses."""
    rows = [
        difference("weight"),
        difference("bias", max_abs=gradient, relative=math.inf, magnitude=0.0),
        difference("bias", Kind.UPDATE, max_abs=1e-3, relative=math.inf, magnitude=0.0),
    ]
    assert judge(rows, SEMANTIC, WHY)[2].outcome is outcome


def test_zero_with_nothing_beside_it():
    (row,) = judge([difference(max_abs=1e-30, relative=math.inf, magnitude=0.0)], SEMANTIC)
    assert row.outcome is DIFFERENT


@pytest.mark.parametrize(
    ("recorded", "outcome"), [(None, WORSE), (1.4, DIFFERENT), (1.6, WORSE), (0.01, DIFFERENT), (3.0, WORSE)]
)
def test_a_ratio_must_not_grow(recorded, outcome):
    d = ratios(3.0, 1.0)
    key = (d.kind, d.name, d.step)
    (row,) = judge([d], NUMERIC, recorded={} if recorded is None else {key: recorded})
    assert row.outcome is outcome
    if outcome is DIFFERENT:
        assert row.reason == f"its ratio has grown from {recorded} to 3, more than 2 x"
        assert row.severity > 1


def test_growth_below_one_is_nothing():
    d = ratios(0.9, 0.5)
    assert judge([d], NUMERIC, recorded={(d.kind, d.name, d.step): 0.01})[0].outcome is SAME


def test_ratios_are_needed():
    with pytest.raises(ValueError, match=r"judge: gradient x has no ratios, which level numeric needs: call"):
        judge([relative(1e-7)], NUMERIC)


@pytest.mark.parametrize("level", Level)
def test_levels_are_parsed_once(level):
    assert Level.parse(level) is Level.parse(level.value) is Level.parse(level.value.upper()) is level


@pytest.mark.parametrize("level", ["strict", "", 1, None])
def test_no_such_level(level):
    with pytest.raises(ValueError, match="is none of semantic, numeric, trajectory"):
        Level.parse(level)


# ------------------------------------------------------------------------- from arrays to a verdict


def verdicts(c, r, **options) -> dict[str, Judged]:
    return {row.difference.name: row for row in judge(measure(c, r, Kind.OUTPUT, **options), SEMANTIC)}


@pytest.mark.full
def test_what_a_fixed_tolerance_gets_wrong():
    """A healthy float32 product of 4096 columns fails `allclose`'s defaults; a wrong epsilon passes 1e-4."""
    random = np.random.RandomState(0)
    a, b = random.standard_normal((2, 64, 4096)).astype(np.float32)
    exact = a.astype(float) @ b.astype(float).T
    c, r = a @ b.T, sum(a[:, i : i + 256] @ b[:, i : i + 256].T for i in range(0, 4096, 256))
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(c, r, rtol=1.3e-6, atol=1e-5)  # what torch takes for float32
    (row,) = judge(measure({"y": c}, {"y": r}, Kind.OUTPUT, oracle={"y": exact}), NUMERIC)
    assert row.outcome is SAME
    x = random.standard_normal((8, 64))
    norms = [x / np.sqrt(x.var(-1, keepdims=True) + epsilon) for epsilon in (1e-5, 1e-6)]
    np.testing.assert_allclose(*norms, rtol=1e-4)
    assert verdicts({"y": norms[0]}, {"y": norms[1]})["y"].outcome is DIFFERENT


def test_cosine_is_no_criterion():
    r = np.random.RandomState(0).rand(1000) + 3
    c = r + 0.05
    assert c @ r / np.linalg.norm(c) / np.linalg.norm(r) > 0.99999
    assert verdicts({"y": c}, {"y": r})["y"].outcome is DIFFERENT


def test_order_is_kept():
    found = judge([difference(name) for name in "cab"], SEMANTIC)
    assert [row.difference.name for row in found] == list("cab")
