"""The comparisons that all other tests rely on find what is planted."""

import numpy as np
import pytest
from comparing import assert_equal_numbers, assert_equal_trees

WANT = np.array([1.0, -2.0, 4.0])


def test_equal_passes_and_reports_the_difference():
    assert assert_equal_numbers("x", WANT.copy(), WANT) == 0
    assert 0 < assert_equal_numbers("x", WANT + 1e-12, WANT) < 1e-11


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (WANT + np.array([0, 0, 1e-9]), "relative difference"),
        (WANT * np.array([1, -1, 1]), "relative difference"),
        (WANT[::-1], "relative difference"),
        (WANT.astype(np.float32), "dtype"),
        (WANT[None], "shape"),
        (WANT[:2], "shape"),
        (np.array([1.0, np.nan, 4.0]), "not finite"),
        (np.array([1.0, np.inf, 4.0]), "not finite"),
    ],
)
def test_a_planted_fault_in_one_array_is_found(fault, message):
    with pytest.raises(AssertionError, match=message):
        assert_equal_numbers("x", fault, WANT)


def test_a_small_tensor_is_judged_by_its_own_size():
    with pytest.raises(AssertionError, match="relative"):
        assert_equal_numbers("x", np.array([1e-12]), np.array([2e-12]))


def test_zero_expected_means_zero():
    with pytest.raises(AssertionError, match="relative"):
        assert_equal_numbers("x", np.array([1e-9]), np.array([0.0]))


def test_integers_are_exact():
    with pytest.raises(AssertionError, match="is not"):
        assert_equal_numbers("n", np.array([3]), np.array([4]))


@pytest.mark.parametrize("keys", [("a",), ("a", "b", "c"), ("a", "c")])
def test_a_leaf_on_one_side_only_is_a_failure(keys):
    want = {"a": WANT, "b": WANT}
    with pytest.raises(AssertionError, match="only"):
        assert_equal_trees("tree", dict.fromkeys(keys, WANT), want)
