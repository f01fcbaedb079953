"""A schedule is described by its phases: of torch, of optax and by hand, at any scale."""

from __future__ import annotations

import math

import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpar.parity._loops.fitting import Fit
from jaxpar.parity._loops.rates import first_rates, rate_changes
from jaxpar.parity._loops.schedules import described

UPDATES = 40


def rates_of(schedule):
    return np.array([float(schedule(i)) for i in range(UPDATES)])


def warm_up(updates, total=UPDATES, lowest=0.0):
    def rate(i):
        turn = math.pi * (i - updates) / (total - updates)
        return (i + 1) / updates if i < updates else lowest + (1 - lowest) * (1 + math.cos(turn)) / 2

    return rate


joined = optax.join_schedules
ROWS = {
    "constant": (lambda i: 0.1, "stays at 0.1"),
    "warm-up": (
        joined([optax.linear_schedule(0, 0.1, 8), optax.constant_schedule(0.1)], [8]),
        "rises linearly from 0 to 0.1 until update 9, then stays at 0.1",
    ),
    "warm-up and cosine": (
        optax.warmup_cosine_decay_schedule(0, 1e-2, 5, 40, 1e-3),
        "rises linearly from 0 to 0.01 until update 6, then falls along a cosine over 35 updates to 0.001",
    ),
    "warm-up that begins at its first step": (
        warm_up(5),
        "rises linearly from 0.2 to 1 until update 5, then stays until update 6, "
        "then falls along a cosine over 35 updates to 0",
    ),
    "cosine that ends": (
        optax.warmup_cosine_decay_schedule(1e-4, 1e-2, 5, 30, 1e-3),
        "rises linearly from 0.0001 to 0.01 until update 6, then falls along a cosine over 25 updates to "
        "0.001, then stays at 0.001 from update 31 on",
    ),
    "linear": (
        optax.linear_schedule(0.1, 0, 30),
        "falls linearly by 0.003333 an update, then stays at 0 from update 31 on",
    ),
    "exponential": (optax.exponential_decay(0.1, 1, 0.9), "falls to 0.9 of it in each update"),
    "steps": (
        optax.exponential_decay(0.1, 10, 0.5, staircase=True),
        "falls to 0.5 of it every 10 updates, first in update 11",
    ),
    "milestones": (
        optax.piecewise_constant_schedule(0.1, {10: 0.1, 30: 0.1}),
        "falls to 0.1 of it in update 11, 31",
    ),
    "warm-up and steps": (
        joined(
            [optax.linear_schedule(0, 0.1, 8), optax.piecewise_constant_schedule(0.1, {4: 0.5, 14: 0.5})], [8]
        ),
        "rises linearly from 0 to 0.1 until update 9, then falls to 0.5 of it in update 13, 23",
    ),
    "power": (
        optax.polynomial_schedule(0.1, 0, 2, 50),
        "falls linearly to the power 2 over 50 updates",
    ),
    "inverse root": (
        joined([optax.linear_schedule(0, 0.1, 8), lambda i: 0.1 * (1 + abs(i) / 8) ** -0.5], [8]),
        "rises linearly from 0 to 0.1 until update 9, then falls with the inverse square root of the update",
    ),
    "trapezoid": (
        joined(
            [
                optax.linear_schedule(0, 0.1, 8),
                optax.constant_schedule(0.1),
                optax.linear_schedule(0.1, 0, 12),
            ],
            [8, 20],
        ),
        "rises linearly from 0 to 0.1 until update 9, then stays until update 21, "
        "then falls linearly by 0.008333 an update, then stays at 0 from update 33 on",
    ),
    "one cycle": (
        optax.cosine_onecycle_schedule(40, 0.1),
        "rises along a cosine from 0.004 to 0.1 until update 13, then falls along a cosine over 28 updates "
        "to 0",
    ),
    "a cosine that counts the warm-up": (
        lambda i: (i + 1) / 5 if i < 5 else (1 + math.cos(math.pi * i / UPDATES)) / 2,
        "rises linearly from 0.2 to 1 until update 5, then jumps to 0.9619 in update 6, "
        "then falls along a cosine over 40 updates to 0",
    ),
    "a cosine by epochs": (
        lambda i: (1 + math.cos(math.pi * (i // 5) / 8)) / 2,
        "changes every 5 updates (counted as one here): falls along a cosine over 8 updates to 0",
    ),
    "epochs of other lengths": (lambda i: (1 + math.cos(math.pi * ((i + 2) // 5) / 8)) / 2, ""),
    "a small part of a cosine": (optax.cosine_decay_schedule(0.1, 400), ""),
    "no schedule": (lambda i: (7 * i + 3) % 11 + 1.0, ""),
    "no rate": (lambda i: 0.0, ""),
    "pauses": (lambda i: 0.1 * (i % 20 > 2), ""),
    "a rate that is not finite": (lambda i: np.nan if i == 3 else 0.1, ""),
}


@pytest.mark.parametrize("name", ROWS, ids=lambda name: name.replace(" ", "_"))
def test_the_phases_are_named(name):
    schedule, text = ROWS[name]
    assert described(rates_of(schedule)) == text


@pytest.mark.parametrize(("n", "text"), [(3, ""), (4, "falls linearly by 1 an update")])
def test_two_rates_define_a_line_and_two_more_confirm_it(n, text):
    assert described(9.0 - np.arange(n)) == text


@given(warm=st.integers(3, 9), other=st.integers(3, 9), lowest=st.sampled_from([0.0, 0.01, 0.1]))
def test_two_texts_are_equal_exactly_where_the_schedules_are(warm, other, lowest):
    texts = [described(rates_of(warm_up(n, lowest=low))) for n, low in ((warm, lowest), (other, 0.0))]
    assert all(texts)
    assert (texts[0] == texts[1]) == (warm == other and lowest == 0.0)


STEPS = 0.5 ** np.arange(24.0)
CHANGES = {
    "an epoch late": (STEPS[np.arange(24) // 8], STEPS[[0] * 16 + [1] * 8], "JAX's is 8 updates late)"),
    "an epoch early": (
        STEPS[np.arange(24) // 8],
        STEPS[np.minimum((np.arange(24) + 8) // 8, 2) * 1],
        "JAX's is 8 updates ahead)",
    ),
    "half as large, which steps of a half are one step early": (
        STEPS[np.arange(24) // 5],
        STEPS[np.arange(24) // 5] / 2,
        "0.5 times as large)",
    ),
    "twice as large": (STEPS[np.arange(24) // 5], 2 * STEPS[np.arange(24) // 5], "2 times as large)"),
    "a lowest rate": (
        rates_of(warm_up(5)),
        np.maximum(rates_of(warm_up(5)), 0.2),
        "JAX's does not fall below 0.2, torch's does)",
    ),
    "a highest rate": (
        np.minimum(rates_of(warm_up(5)), 0.9),
        rates_of(warm_up(5)),
        "torch's does not rise above 0.9, JAX's does)",
    ),
    "another final rate": (
        rates_of(warm_up(5, lowest=0.1)),
        rates_of(warm_up(5)),
        "from 1 torch's falls to 0.1018, JAX's to 0.002013, in one shape: another final rate)",
    ),
    "once a batch of two": (
        np.linspace(1, 0.1, 24),
        np.append(np.linspace(1, 0.1, 24)[1::2], [0.1] * 12),
        "in each update 2 times as far as torch's)",
    ),
}


@pytest.mark.parametrize("name", CHANGES, ids=lambda name: name.replace(" ", "_"))
def test_a_change_of_a_schedule_is_named(name):
    rates, others, text = CHANGES[name]
    if name == "once a batch of two":
        rates, others = rates[:24], others[:12]
    (sentence,) = rate_changes({"w": list(rates)}, Fit({"w": list(others)}, {"w": [0.0] * len(others)}))
    assert text in sentence
    assert "; or " not in sentence or name == "an epoch late"


def test_two_lines_do_not_have_one_shape_and_another_end():
    rates, others = (np.maximum(1 - np.arange(24) / n, 0.1) for n in (100, 70))
    assert rate_changes({"w": list(rates)}, Fit({"w": list(others)}, {"w": [0.0] * 24})) is None


def test_rates_are_held_only_where_the_others_change():
    rates = STEPS[np.repeat([0, 1, 2], [18, 9, 9])]
    (sentence,) = rate_changes({"w": list(rates)}, Fit({"w": [*rates[:18], *[0.5] * 18]}, {"w": [0.0] * 36}))
    assert "2 times as large from update 28 on" in sentence


def test_a_schedule_is_late_only_if_the_first_rate_lasts_until_then():
    rates = STEPS[np.arange(24) // 5]
    others = np.concatenate([[0.3, 0.2, 0.5, 0.4, 0.35], rates[:-5]])
    assert rate_changes({"w": list(rates)}, Fit({"w": list(others)}, {"w": [0.0] * 24})) is None


@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_rates_of_arrays_that_differ_by_other_factors_are_named(factor):
    torch_rates = {"a": [0.1] * 6, "b": [0.2] * 6}
    rates = {"a": [0.2] * 6, "b": [0.2 * factor] * 6}
    result = Fit(rates, {name: [0.0] * 6 for name in rates})
    text = first_rates(torch_rates, result)
    assert text.startswith("the rates differ from update 1 on: 0.1 and 0.2 (a)")
    assert text.endswith("; other arrays differ by other factors") == (factor != 2)


def test_rates_differ_from_an_update_whose_rate_is_zero():
    torch_rates = {"a": [0.0, 0.1, 0.3], "b": [0.0, 0.1, 0.3]}
    result = Fit({name: [0.2, 0.4, 0.1] for name in "ab"}, {name: [0.0] * 3 for name in "ab"})
    assert first_rates(torch_rates, result).startswith("the rates differ from update 1 on: 0 and 0.2 (a)")
