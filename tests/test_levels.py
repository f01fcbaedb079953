"""Parts of the comparison's levels by themselves: envelopes, updates with digits, distances."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from jaxpar.parity import Kind
from jaxpar.parity._levels import (
    OUTSIDE,
    RESOLVED,
    Findings,
    Sides,
    _distance,
    _error,
    _first_outside,
    resolved_updates,
    resynchronised,
)
from jaxpar.parity._sides.step_data import Observation

SEEN = SimpleNamespace(weights={"w": np.zeros(2, np.float32), "n": np.zeros((), np.int32)})
EPS = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize(
    ("errors", "outside"),
    [
        ([(1e-3, 1e-4, 1e-3)], None),
        ([(0.99 * OUTSIDE * 1e-3, 0.0, 1e-3)], None),
        ([(1e-3, 1e-3, 1e-3), (1.1 * OUTSIDE * 1e-3, 0.0, 1e-3)], 2),
        ([(10 * EPS, 0.0, 0.0)], None),  # rounding, where every run takes the same path
        ([(20 * EPS, 0.0, 0.0)], 1),
    ],
)
def test_the_first_step_outside_of_the_envelope(errors, outside):
    assert _first_outside(errors, SEEN) == outside


def test_updates_without_digits_are_not_compared():
    """Of a weight of 1 that moves by less than RESOLVED nothing but rounding is left."""
    start = {"moved": np.ones(2), "stayed": np.ones(2)}
    theirs = {"moved": start["moved"] + 0.1, "stayed": start["stayed"] + RESOLVED / 2}
    ours = {"moved": theirs["moved"] + 1e-3, "stayed": theirs["stayed"]}
    found = resolved_updates((start, start), (ours, theirs), 1, {})
    assert [(d.kind, d.name) for d in found] == [
        (Kind.UPDATE, "moved"),
        (Kind.WEIGHT, "moved"),
        (Kind.WEIGHT, "stayed"),
    ]
    assert found[0].relative == pytest.approx(1e-2)
    assert found[1].relative == pytest.approx(1e-3 / 1.1)


def test_distances_are_of_all_parameters_but_the_noise():
    way = {"a": np.array([3.0, 0.0]), "b": np.array([4.0]), "noise": np.array([1e6])}
    moved = {"a": np.array([3.0, 0.5]), "b": np.array([4.0]), "noise": np.array([-1e6])}
    assert _distance(moved, way, Findings(noise={"noise": "why"})) == pytest.approx(0.5 / 5)
    nothing = {"a": np.zeros(2)}
    assert _distance({"a": np.array([0.0, 2.0])}, nothing, Findings()) == 2.0


class Walker:
    """A side with one weight, which every step moves by the same."""

    def __init__(self, move):
        self.weight, self.move = 0.0, move

    def weights(self):
        return {"w": np.array([self.weight])}

    def state(self):
        return {}

    def load(self, weights, state):
        self.weight = float(weights["w"][0])

    def continue_from(self, other, with_optimizer=True):
        self.weight = other.weight

    def step(self, batch, masks=()):
        self.weight += self.move
        return Observation({}, {}, {}, {}, {}, self.weights())


def test_every_step_starts_where_the_reference_is():
    """Otherwise the way that the reference has gone hides the error of a step."""
    sides, findings = Sides(Walker(1.25), Walker(1.5), Walker(1.0)), Findings()
    assert sum(1 for _ in resynchronised(sides, lambda number: None, 5, findings)) == 5
    assert findings.curve.candidate == (0.5,) * 5
    assert findings.curve.low == (0.25,) * 5


class Runner(Walker):
    """A Walker with momentum, the state of its optimizer."""

    momentum = 0.0

    def continue_from(self, other, with_optimizer=True):
        super().continue_from(other)
        if with_optimizer:
            self.momentum = other.momentum

    def step(self, batch, masks=()):
        self.momentum = 0.5 * self.momentum + self.move
        self.weight += self.momentum
        return Observation({}, {}, {}, {}, {}, self.weights())


def test_an_optimizers_error_counts_for_both():
    """Otherwise only the candidate's moments hold the rounding of earlier gradients."""
    sides, findings = Sides(Runner(0.75), Runner(1.25), Runner(1.0)), Findings()
    assert sum(1 for _ in resynchronised(sides, lambda number: None, 5, findings)) == 5
    assert findings.curve.candidate == findings.curve.low


def test_errors_are_relative_to_the_largest_number():
    true = {"x": np.array([4.0, 1.0]), "zero": np.zeros(2), "n": np.array([1, 2])}
    seen = {"x": np.array([4.0, 1.5], np.float32), "zero": np.ones(2), "n": np.array([3, 4])}
    assert _error(seen, true) == 0.125
    assert _error({}, true) == 0.0
