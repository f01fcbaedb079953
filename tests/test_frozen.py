"""A rank that runs no Python is noticed wherever it is: stopped by a signal, or without the GIL."""

from __future__ import annotations

import re
import signal
import subprocess
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxpar._tools.launch import watch
from jaxpar._tools.launch.settings import LaunchSettings
from jaxpar._tools.launch.supervise import run
from jaxpar._tools.launch.watch import FreezeWatch

FREEZES = {  # how rank 1 freezes before any step: the report
    "os.kill(os.getpid(), signal.SIGSTOP)": r"rank 1 was stopped by SIGSTOP for \d\.\d s; ",
    "ctypes.PyDLL(None).sleep(60)": r"rank 1 has run no Python for \d\.\d s; .*File .*train\.py., line 5 in",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", FREEZES)
def test_a_frozen_rank_is_blamed_before_its_first_step(how, tmp_path, monkeypatch, capfd):
    # The others are slow, and no step limit holds yet.
    source = f"""
        import ctypes, os, signal, time
        if os.environ["RANK"] == "1":
            time.sleep(0.6)  # what loads before
            {how}
        time.sleep(60)
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(source))
    monkeypatch.setattr(watch, "STOPPED", 1.0)
    monkeypatch.setattr(watch, "WITHOUT_GIL", 2.0)
    began = time.monotonic()
    assert run(LaunchSettings(2, str(tmp_path / "train.py"), step_timeout=0.5)) == 70
    assert time.monotonic() - began < 20
    assert re.search(FREEZES[how], capfd.readouterr().err, re.DOTALL)


def worker(rank, **fields):
    found = {"pulses": 0, "code": None, "done": False} | fields
    return SimpleNamespace(rank=rank, process=SimpleNamespace(pid=rank), **found)


STATES = {  # step timeout; per rank (when it is stopped, when its pulse ends); who is frozen, and from when
    "all run": (9.0, [((), None), ((), None)], None),
    "one is stopped": (None, [((), None), ((40, 99), 40)], (1, 45)),
    "one goes on in time": (None, [((40, 44), None), ((), None)], None),
    "stopped twice, shortly": (None, [((40, 44, 46, 50), None), ((), None)], None),
    "a pulse ends": (9.0, [((), 30), ((), None)], (0, 50)),
    "a pulse ends, and steps may be long": (30.0, [((), 30), ((), None)], (0, 60)),
    "a pulse ends, and nothing is limited": (None, [((), 30), ((), None)], None),
    "no pulse yet": (9.0, [((), 0), ((), None)], None),
    "two at once": (9.0, [((), 24.5), ((40, 99), None)], (0, 45)),
    "the first of two": (9.0, [((41, 99), None), ((40, 99), None)], (1, 45)),
}


@pytest.mark.parametrize("case", STATES)
def test_who_is_frozen(case, monkeypatch):
    timeout, ranks, expected = STATES[case]
    workers = [worker(rank) for rank in range(len(ranks))]
    now = 0.0

    def stopped(pid):
        times = ranks[pid][0]
        return 19 if any(a <= now < b for a, b in zip(times[::2], times[1::2], strict=True)) else None

    monkeypatch.setattr(watch, "_stopped", stopped)
    freezes = FreezeWatch(workers, timeout, now)
    found = None
    while found is None and now < 90:
        now += 0.5
        for one in workers:
            end = ranks[one.rank][1]
            one.pulses += end is None or now <= end
        found = freezes.look(now)
    if expected is None:
        assert found is None
    else:
        rank, due = expected
        assert found[0].rank == rank
        assert due <= now <= due + 1


@pytest.mark.parametrize(("code", "done"), [(0, False), (None, True)])
def test_a_rank_that_has_ended_or_is_about_to_is_not_frozen(code, done, monkeypatch):
    monkeypatch.setattr(watch, "_stopped", lambda pid: 19)
    assert FreezeWatch([worker(0, pulses=3, code=code, done=done)], 1.0, 0).look(1e6) is None


@pytest.mark.slow
def test_what_the_kernel_tells_of_a_process():
    process = subprocess.Popen(["sleep", "60"])

    def state_after(number):
        process.send_signal(number)
        end = time.monotonic() + 10
        while time.monotonic() < end and (state := Path(f"/proc/{process.pid}/stat").read_text())[-1:]:
            letter = state.rpartition(")")[2].split()[0]
            if (letter == "T") == (number == signal.SIGSTOP) and (letter == "Z") == (
                number == signal.SIGKILL
            ):
                break
        return watch._stopped(process.pid)

    try:
        assert watch._stopped(process.pid) is None
        assert state_after(signal.SIGSTOP) == signal.SIGSTOP
        assert watch._stopped(process.pid) == signal.SIGSTOP  # the answer is kept
        assert state_after(signal.SIGCONT) is None
        assert state_after(signal.SIGKILL) is None  # a zombie
    finally:
        process.kill()
        process.wait()
