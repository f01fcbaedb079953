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


@pytest.mark.long
def test_a_job_that_fails_twice_ends_with_the_bits_of_one_that_does_not(tmp_path):
    bench = survival.Bench(timeout=30, cache=tmp_path / "cache")
    alone, troubled = tmp_path / "alone", tmp_path / "troubled"
    alone.mkdir()
    troubled.mkdir()
    code, spoke, said = survival.launch(bench, 2, alone)
    assert (code, spoke) == (0, None), said
    asked = survival.Failure(2, 0, 3, "SIGTERM", 0.0)
    killed = survival.Failure(2, 1, survival.STEPS - 4, "SIGKILL", 0.05, attempt=1)
    code, _, said = survival.launch(bench, 2, troubled, asked, killed)
    assert code == 0, said
    assert "restarting for free" in said
    assert "rank 1 failed first" in said
    expected = survival.finals(alone, 2)
    assert survival.finals(troubled, 2) == expected
    assert len(expected[0]) == 64
    (again,) = {file.read_text().split()[0] for file in troubled.glob("first-2-*")}
    assert 0 <= killed.step - int(again) < 2 * survival.EVERY


ENDS = {  # exit code, whether it was restarted, what rank 1 ended with: whether the trial is good
    "the same": (0, True, "b", True),
    "other bits": (0, True, "c", False),
    "no end": (0, True, None, False),
    "a failure": (1, True, "b", False),
    "never restarted": (0, False, "b", False),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_trial_is_good_if_everything_is(case, monkeypatch, tmp_path):
    code, restarted, final, good = ENDS[case]

    def launch(bench, n, folder, failure):
        for rank, text in enumerate(["a", final]):
            if text:
                (folder / f"final-{rank}").write_text(text)
            if restarted:
                (folder / f"first-1-{rank}").write_text("4 102.5")
        (folder / "failed").write_text("100.0")
        return code, 100.5, ""

    monkeypatch.setattr(survival, "launch", launch)
    bench = survival.Bench(timeout=30, cache=tmp_path)
    result = survival.trial(bench, survival.Failure(2, 1, 5, "SIGKILL", 0.0), ["a", "b"])
    measured = (2.0, 1) if restarted else (None, None)
    assert result == survival.Result(good, code, 0.5, *measured)


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
