"""beat: a supervisor sees it, it costs next to nothing, and who stops first is found."""

from __future__ import annotations

import subprocess
import sys
import time
import timeit
from types import SimpleNamespace

import pytest

import jaxpar
from jaxpar._tools.launch.watch import START, Pulse
from jaxpar._training import watchdog as _watchdog
from jaxpar._training.watchdog import Marks, reached


@pytest.fixture
def fresh(monkeypatch):
    """A process that has not beaten yet, without a supervisor."""
    for name in (_watchdog.BEAT_FILE, _watchdog.STEP_TIMEOUT):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_watchdog, "_process", _watchdog._Process())


@pytest.fixture
def marks(fresh, monkeypatch, tmp_path):
    """What its supervisor sees."""
    monkeypatch.setenv(_watchdog.BEAT_FILE, str(tmp_path / "beats"))
    return Marks.create(tmp_path / "beats")


CALLS = {  # calls: beats, the highest step
    "none": ([], 0, -1),
    "without numbers": ([None, None, None], 3, -1),
    "with numbers": ([7, 8, 9], 3, 9),
    "a number, then none": ([7, None, None], 3, 7),
    "the same step twice": ([7, 7], 2, 7),
    "a second epoch that counts from 0": ([0, 1, 2, 0, 1], 5, 2),
    "after a checkpoint": ([("reached", 40), None, None], 2, 40),
    "a checkpoint in between": ([("reached", 40), None, ("reached", 41), None], 2, 41),
    "numbers beyond the checkpoint": ([("reached", 40), 41, 42], 2, 42),
    "step 0": ([0], 1, 0),
}


@pytest.mark.parametrize("case", CALLS)
def test_what_a_supervisor_sees(case, marks):
    calls, beats, step = CALLS[case]
    for call in calls:
        if isinstance(call, tuple):
            reached(call[1])
        else:
            jaxpar.beat(call)
    assert marks.cells.tolist() == [beats, step, 0, 0, 0, 0]


def test_without_a_supervisor_nothing_happens(fresh):
    jaxpar.beat()
    jaxpar.beat(3)
    reached(4)
    assert _watchdog._process.marks is None


@pytest.mark.parametrize("supervised", [False, True])
def test_it_costs_little(supervised, request):
    request.getfixturevalue("marks" if supervised else "fresh")
    # Measured: 0.05 and 0.3 microseconds.
    assert min(timeit.repeat(lambda: jaxpar.beat(5), number=1000, repeat=5)) / 1000 < 30e-6


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_a_limit_that_is_none(text, fresh, monkeypatch):
    monkeypatch.setenv(_watchdog.STEP_TIMEOUT, text)
    with pytest.raises(ValueError, match=rf"beat: JAXPAR_STEP_TIMEOUT='{text}' must be a positive number"):
        jaxpar.beat()


ALONE = """
import sys, time, jaxpar
time.sleep(0.6)  # before the first step: no limit
for step in range(3):
    jaxpar.beat()
    time.sleep(0.2)
print("trained", flush=True)
if sys.argv[1] == "stuck":
    time.sleep(30)  # line 9
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stuck", "done"])
def test_a_process_watches_itself_without_a_supervisor(how, fresh, monkeypatch):
    monkeypatch.setenv(_watchdog.STEP_TIMEOUT, "0.5")
    ended = subprocess.run([sys.executable, "-c", ALONE, how], capture_output=True, text=True, timeout=20)
    assert ended.stdout == "trained\n"
    assert (ended.returncode, "line 9 in <module>" in ended.stderr) == (
        (1, True) if how == "stuck" else (0, False)
    )


# ------------------------------------------------------------------------------------- who stopped first

S = 2.0
PULSES = {
    # Per rank, when its beats come; its end, its code and whether it had come to the end of its script; what
    # is found at which time.
    "all alive": ([range(30), range(30)], {}, None),
    "one stops": ([range(30), range(5)], {}, (1, 4 + S)),
    "the others wait for it": ([range(8), range(6), range(8)], {}, (1, 5 + S)),
    "nobody has begun": ([[], []], {}, None),
    "one compiles still": ([[0, *range(15, 40)], range(15, 40)], {}, None),
    "one compiled, then stops": ([[0, 15, 16], [15, 16, 17]], {}, (0, 17 + S)),
    "the optimizer compiles": ([[0, 9, *range(10, 40)], [0, 9, *range(10, 40)]], {}, None),
    "one never begins": ([[0], []], {}, (1, START * S)),
    "one is done": ([range(30), range(5)], {1: (5, 0, True)}, None),
    "one has left": ([range(8), range(5)], {1: (5, 0, False)}, (1, 7 + S)),
    "one is done, another stops": ([range(9), range(5)], {1: (5, 0, True)}, (0, 8 + S)),
}


@pytest.mark.parametrize("case", PULSES)
def test_who_stopped_first(case):
    times, ends, expected = PULSES[case]
    workers = [SimpleNamespace(rank=rank, beats=0, code=None, left_early=False) for rank in range(len(times))]
    pulse = Pulse(workers, S, 0)
    found = None
    for tick in range(170):
        now = tick / 8
        for worker, beats in zip(workers, times, strict=True):
            worker.beats = sum(t <= now for t in beats)
            if worker.rank in ends and ends[worker.rank][0] <= now:
                _, worker.code, done = ends[worker.rank]
                worker.left_early = not done
        found = pulse.silent(now)
        if found:
            break
    assert (found is None) == (expected is None)
    if expected:
        worker, silent = found
        rank, due = expected
        assert worker.rank == rank
        assert due < now <= due + 1 / 4
        assert silent >= min(S, now)


def test_without_a_limit_nobody_is_silent():
    worker = SimpleNamespace(rank=0, beats=1, code=None, left_early=False)
    assert Pulse([worker], None, 0).silent(1e6) is None


@pytest.mark.slow
def test_a_mark_outlives_its_process(tmp_path):
    file = tmp_path / "beats"
    marks = Marks.create(file)
    code = (
        "import jaxpar, os, sys\n"
        f"os.environ['JAXPAR_BEAT_FILE'] = {str(file)!r}\n"
        "jaxpar.beat(41)\njaxpar.beat(42)\nos.kill(os.getpid(), 9)"
    )
    start = time.monotonic()
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert time.monotonic() - start < 20
    assert marks.cells.tolist() == [2, 42, 0, 0, 0, 0]
