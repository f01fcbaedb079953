"""Killed at a random moment, started again, and the same bits: the short form of benchmarks/survival.py."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import survival
from survival import BLAMES, KINDS, PLACES, STEPS, Bench, Fault, Orders, Reference, Result
from survival_script import EVERY, Faults, digest


@pytest.mark.long
def test_a_job_that_fails_twice_ends_with_the_bits_of_one_that_does_not(tmp_path):
    bench = Bench(timeout=60, cache=tmp_path / "cache")
    expected = survival.reference(bench, 2, tmp_path / "reference")
    asked = Fault(2, 0, "SIGTERM", "save", 4, 0.5)
    killed = Fault(2, 1, "SIGKILL", "step", STEPS - 4, 0.5, attempt=1)
    folder = tmp_path / "troubled"
    folder.mkdir()
    faults = tuple(dataclasses.asdict(fault) for fault in (asked, killed))
    code, _, text = survival.launch(bench, 2, Orders(str(folder), faults=faults, sizes=expected.sizes[0]))
    assert code == 0, text
    assert "restarting for free" in text
    assert "rank 1 failed first" in text
    assert survival.finals(folder, 2) == expected.finals
    assert len(expected.finals[0]) == 64
    (again,) = {file.read_text().split()[0] for file in folder.glob("first-2-*")}
    assert 0 <= killed.step - int(again) < 2 * EVERY


KILLED = "rank 1 failed first, 3.1 s after the start: SIGKILL; restart 1 of 1 in 1 s"
ENDS = {  # exit code, what rank 1 ended with, the report, whether it struck; right bits, right blame
    "the same": (0, "b", KILLED, True, (True, True)),
    "other bits": (0, "c", KILLED, True, (False, True)),
    "no end": (0, None, KILLED, True, (False, True)),
    "a failure": (1, "b", KILLED, True, (False, True)),
    "another rank": (0, "b", KILLED.replace("rank 1", "rank 0"), True, (True, False)),
    "another end": (0, "b", KILLED.replace("SIGKILL", "exit code 1"), True, (True, False)),
    "no report": (0, "b", None, True, (True, False)),
    "no fault": (0, "b", None, False, (False, False)),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_trial_is_right_if_everything_is(case, monkeypatch, tmp_path):
    code, final, report, struck, right = ENDS[case]

    def launch(bench, n, orders, cache):
        folder = Path(orders.folder)
        for rank, text in enumerate(["a", final]):
            if text:
                (folder / f"final-{rank}").write_text(text)
        if struck:
            (folder / "struck").write_text("100.0")
        return code, 100.5, f"[0] a line\njaxpar launch: {report}\n" if report else ""

    monkeypatch.setattr(survival, "launch", launch)
    bench = Bench(timeout=30, cache=tmp_path)
    fault = Fault(2, 1, "SIGKILL", "step", 4, 0.0)
    result = survival.trial(bench, fault, Reference(["a", "b"], tmp_path, {1: {}}))
    assert (result.bits, result.blame) == right
    assert result.noticed == (0.5 if struck else None)


REPORTS = {  # kind: the first report, and the ranks that are right
    "SIGTERM": ("preempted at step 6; restarting for free in 1 s", {0, 1}),
    "SIGINT": ("rank 1 failed first, 3.1 s after the start: exit code 130; restart 1", {1}),
    "SIGSTOP": ("rank 1 was stopped by SIGSTOP for 5.1 s; restart 1", {1}),
    "LOCK_GIL": ("rank 1 has run no Python for 20.1 s, after step 3; restart 1", {1}),
    "OS_ABORT": ("rank 1 failed first, 3.1 s after the start: SIGABRT; restart 1", {1}),
    "slow rank": ("rank 1 made no step for 9.0 s; restart 1", set()),
    "full disk": ("rank 0 failed first, 3.1 s after the start: exit code 1; restart 1", {0, 1}),
}


@pytest.mark.parametrize("kind", REPORTS)
def test_the_right_rank_is_blamed_of_the_right_fault(kind):
    report, ranks = REPORTS[kind]
    for rank in range(2):
        blame = survival.right_blame(Fault(2, rank, kind, "step", 4, 0.0), [report], "")
        assert blame == (rank in ranks)
    assert not survival.right_blame(Fault(2, 1, kind, "step", 4, 0.0), ["rank 1 has left"], "")


def test_of_a_lost_folder_the_rank_that_misses_it_is_blamed():
    fault = Fault(2, 1, "lost folder", "save", 4, 0.0)
    report = "rank 0 failed first, 3.1 s after the start: exit code 1; restart 1"
    misses = "[0] [rank 0] jaxpar.errors.CheckpointError: there is no disk/checkpoints\n"
    assert survival.right_blame(fault, [report], misses)
    assert not survival.right_blame(fault, [report], misses.replace("0", "1"))
    assert survival.right_blame(fault, [], "")


def test_every_kind_has_its_report():
    assert set(BLAMES) == set(KINDS)
    assert len(KINDS) == 12


def test_the_digest_sees_a_bit():
    tree = {"a": jnp.zeros(3), "key": jax.random.key(0)}
    right = digest(tree)
    assert digest(dict(tree)) == right
    others = [
        tree | {"a": jnp.zeros(3).at[1].set(-0.0)},
        tree | {"a": jnp.zeros((3, 1))},
        tree | {"a": jnp.zeros(3, jnp.int32)},
        tree | {"key": jax.random.key(1)},
        {"b": tree["a"], "key": tree["key"]},
    ]
    assert right not in [digest(other) for other in others]


def test_faults_are_drawn_from_the_seed():
    plan = survival.faults(60, [2, 4], 7)
    assert plan == survival.faults(60, [2, 4], 7)
    assert plan != survival.faults(60, [2, 4], 8)
    assert set(Counter(fault.kind for fault in plan).values()) == {5}
    assert {fault.rank for fault in plan if fault.n == 4} == {0, 1, 2, 3}
    assert {fault.place for fault in plan} == set(PLACES)
    assert all(0 < fault.step < STEPS and fault.step % EVERY == 0 for fault in plan)


@pytest.mark.parametrize("moment", [0.0, 0.5, 0.99])
def test_a_fault_strikes_once_inside_of_its_place(moment, tmp_path):
    fault = dataclasses.asdict(Fault(2, 1, "exception", "step", 4, moment))
    faults = Faults(Orders(str(tmp_path), faults=(fault,), sizes={"step": (1.0, 10)}), 1, 0)
    calls = []

    def call(i):
        calls.append(i)

    def place(name, step):
        with faults.at(name, step):
            for i in range(10):
                call(i)

    place("step", 2)
    place("save", 4)
    calls.clear()
    with pytest.raises(RuntimeError, match="on purpose"):
        place("step", 4)
    assert len(calls) == int(10 * moment)
    place("step", 4)  # once only
    assert sys.getprofile() is None


def test_the_table_counts_what_went_wrong():
    good = Result(True, True, "", 0.1, 20.0)
    bad = dataclasses.replace(good, bits=False, noticed=None)
    fault = Fault(2, 0, "SIGSTOP", "step", 5, 0.0)
    text = survival.table([(fault, good), (fault, bad), (dataclasses.replace(fault, place="save"), good)], "")
    assert "| SIGSTOP | 3 | step, save | 2 | 3 | 0.1 (at most 0.1) | 20.0 (at most 20.0) |" in text
    assert text.endswith("\n2 of 3 ended with the right bits and the right blame.")
