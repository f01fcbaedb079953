"""Killed at a random moment, started again, and the same bits: the short form of benchmarks/survival.py."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

FILE = Path(__file__).resolve().parents[1] / "benchmarks" / "survival.py"
spec = importlib.util.spec_from_file_location("survival", FILE)
survival = importlib.util.module_from_spec(spec)
sys.modules["survival"] = survival  # dataclasses look themselves up there
spec.loader.exec_module(survival)


@pytest.mark.slow
def test_a_job_that_fails_twice_ends_with_the_bits_of_one_that_does_not(tmp_path):
    bench = survival.Bench(timeout=30, cache=tmp_path / "cache", keep=tmp_path / "keep")
    (tmp_path / "alone").mkdir()
    code, spoke, said = survival.launch(bench, 2, tmp_path / "alone", None)
    assert (code, spoke) == (0, None), said
    expected = survival.finals(tmp_path / "alone", 2)
    assert len(set(expected)) == 1
    assert len(expected[0]) == 64
    for failure in (survival.Failure(2, 1, 9, "SIGKILL", 0.003), survival.Failure(2, 0, 12, "SIGTERM", 0.0)):
        result = survival.trial(bench, failure, expected)
        logs = "\n".join(log.read_text() for log in (tmp_path / "keep").glob("*"))
        assert result.same, f"{result}\n{logs}"
        assert result.lost < 2 * survival.EVERY
    # The comparison is able to fail.
    other = survival.trial(bench, survival.Failure(2, 1, 9, "exception", 0), ["0" * 64] * 2)
    assert (other.same, other.code) == (False, 0)


def test_the_digest_sees_a_bit():
    tree = {"a": jnp.zeros(3), "key": jax.random.key(0)}
    digest = survival.digest(tree)
    assert survival.digest(dict(tree)) == digest
    others = [
        tree | {"a": jnp.zeros(3).at[1].set(-0.0)},
        tree | {"a": jnp.zeros((3, 1))},
        tree | {"a": jnp.zeros(3, jnp.int32)},
        tree | {"key": jax.random.key(1)},
        {"b": tree["a"], "key": tree["key"]},
    ]
    assert digest not in [survival.digest(other) for other in others]


def test_failures_are_drawn_from_the_seed():
    plan = survival.failures(40, [2, 4], 7)
    assert plan == survival.failures(40, [2, 4], 7)
    assert plan != survival.failures(40, [2, 4], 8)
    assert set(Counter((f.n, f.kind) for f in plan).values()) == {5}
    assert {f.rank for f in plan if f.n == 4} == {0, 1, 2, 3}
    assert all(0 < f.step < survival.STEPS for f in plan)


def test_the_table_counts_what_went_wrong():
    good = survival.Result(True, 0, 0.1, 2.0, 1)
    bad = dataclasses.replace(good, same=False, noticed=None, lost=None)
    failure = survival.Failure(2, 0, 5, "hang", 0.0)
    text = survival.table([(failure, good), (failure, bad), (dataclasses.replace(failure, n=4), good)])
    assert "| 2 | hang | 2 | 1 | 0.10 (at most 0.10) | 2.00 (at most 2.00) | 1 |" in text
    assert text.endswith("\n2 of 3 ended with the same bits.")
