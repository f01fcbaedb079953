"""progress: what is seen, that nothing waits for it, and that a terminal is left as it was."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpar
from jaxpar._metrics.progress import is_first
from jaxpar.errors import MetricError


@pytest.fixture(autouse=True)
def python_handles_sigint():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still; `clock.now += 1` moves it."""

    class Clock:
        now = 0.0

    monkeypatch.setattr("jaxpar._metrics.progress.time.monotonic", lambda: Clock.now)
    return Clock


class Value:
    """A device array that is ready when it is told so."""

    shape, dtype = (), np.dtype(float)
    is_fully_addressable = True

    def __init__(self, value, ready=False):
        self.value, self.ready = value, ready

    def is_ready(self):
        return self.ready

    def is_deleted(self):
        return False

    def __array__(self, dtype=None, copy=None):
        assert self.ready, "somebody waits for the device"
        return np.array(self.value)


# --------------------------------------------------------------------------------------------- lines


def test_a_line_every_few_seconds_and_one_at_the_end(clock, capsys):
    bar = jaxpar.progress("abcdefg", description="epoch 1", every=5)
    for letter in bar:
        bar.show(letter=letter, loss=1 / 3, n=np.int64(7))
        clock.now += 2
    assert capsys.readouterr().err.splitlines() == [
        f"step {i} of 7: epoch 1, letter {letter}, loss 0.3333, n 7"
        for i, letter in ((1, "a"), (4, "d"), (7, "g"))
    ]


@pytest.mark.parametrize(
    ("steps", "total", "last"),
    [
        (3, None, "step 3 of 3"),
        (iter("ab"), None, "step 2"),
        (iter("ab"), 9, "step 2 of 9"),
        ([], None, None),
    ],
    ids=["number", "no length", "total", "nothing"],
)
def test_totals(steps, total, last, capsys):
    items = list(jaxpar.progress(steps, total=total))
    assert items == {None: [], "step 3 of 3": [0, 1, 2]}.get(last, ["a", "b"])
    assert capsys.readouterr().err.splitlines()[-1:] == ([last] if last else [])


def test_a_length_that_raises(capsys):
    class Stream:
        def __len__(self):
            raise TypeError("a stream has no length")

        def __iter__(self):
            return iter("ab")

    assert list(jaxpar.progress(Stream())) == ["a", "b"]
    assert capsys.readouterr().err.splitlines()[-1] == "step 2"
    with pytest.raises(TypeError, match="pass total="):
        len(jaxpar.progress(Stream()))
    assert len(jaxpar.progress(Stream(), total=2)) == 2


def test_counted_by_hand_and_gone_at_the_end(clock, capsys):
    with jaxpar.progress(3, description="starting", leave=False) as bar:
        for i in range(3):
            bar.step(f"phase {i}")
    assert capsys.readouterr().err.splitlines() == ["starting", "step 1 of 3: phase 0"]


def test_a_loop_over_one_that_is_open_counts_once(clock, capsys):
    with jaxpar.progress("ab") as bar:
        assert list(bar) == ["a", "b"]
    assert bar.done == 2
    assert capsys.readouterr().err.splitlines() == ["step 1 of 2", "step 2 of 2"]


@pytest.mark.parametrize("variables", [{"RANK": "1"}, {"JAXPAR_PROGRESS": "off"}], ids=["rank 1", "off"])
def test_silence(variables, monkeypatch, capsys):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    bar = jaxpar.progress(3)
    for _ in bar:
        bar.show(loss=Value(1.0))
    assert capsys.readouterr() == ("", "")


# -------------------------------------------------------------------------------------------- values


def test_nothing_waits_and_the_last_that_was_ready_is_shown(clock, capsys):
    values = [Value(float(i)) for i in range(6)]
    bar = jaxpar.progress(values, every=0)
    for i, value in enumerate(bar):
        bar.show(loss=value)
        if i == 2:
            values[0].ready = values[1].ready = values[2].ready = True
        if i == 4:
            values[3].ready = True
    shown = [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()]
    # Value 1 was replaced by the newer value 2 while both were waiting, value 3 is the oldest of the rest.
    assert shown == ["", "", "loss 2", "loss 2", "loss 3", "loss 3"]


def test_device_arrays(capsys):
    bar = jaxpar.progress(2, every=0)
    for i in bar:
        gone = jnp.ones(())
        bar.show(loss=jax.block_until_ready(jnp.float32(i / 4)), gone=gone)
        gone.delete()
    assert capsys.readouterr().err.splitlines() == ["step 1 of 2: loss 0", "step 2 of 2: loss 0.25"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: np.ones(2), r"loss has shape \(2,\)"),
        (lambda: None, "loss is None of type NoneType"),
        (lambda: jax.jit(lambda x: jaxpar.progress(1).show(loss=x))(1.0), "loss is being traced"),
    ],
    ids=["axes", "none", "traced"],
)
def test_bad_values_are_named(value, message):
    with pytest.raises(MetricError, match=r"^progress\.show: " + message):
        jaxpar.progress(1).show(loss=value())


# ------------------------------------------------------------------------------------------- endings


def test_ctrl_c_ends_the_loop_after_the_step(capsys):
    done = []

    def train():
        for epoch in jaxpar.progress(3, description="epochs"):
            for step in jaxpar.progress(3, description="steps"):  # the inner loop ends as well
                if step == 1:
                    signal.raise_signal(signal.SIGINT)
                done.append((epoch, step))

    with pytest.raises(KeyboardInterrupt):
        train()
    assert done == [(0, 0), (0, 1)]
    assert capsys.readouterr().err.splitlines() == ["step 1 of 3: steps", "step 2 of 3: steps"]


def test_a_break_and_an_error_put_everything_back():
    for _ in jaxpar.progress(3):
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        break
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(ZeroDivisionError):
        [1 / i for i in jaxpar.progress(3)]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


TERMINAL = """
import time, sys
import jaxpar
assert not {"jax", "flax", "torch"} & set(sys.modules)
bar = jaxpar.progress(1000, description="epoch [1]")
for epoch in jaxpar.progress(2, description="epochs"):
    for i in bar:
        bar.show(loss=i / 2)
        time.sleep(0.02)
        if i == 5 and epoch == 0:
            break
"""


@pytest.mark.slow
def test_ctrl_c_on_a_terminal():
    """A pseudo terminal is what the process sees as stderr."""
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen([sys.executable, "-c", TERMINAL], stderr=theirs, env=env) as process:
        os.close(theirs)
        seen, deadline = b"", time.monotonic() + 60
        try:
            while b"1/2" not in seen or seen.count(b"loss") < 4:
                assert time.monotonic() < deadline, seen
                seen += os.read(ours, 4096)
            process.send_signal(signal.SIGINT)
            while True:
                seen += os.read(ours, 4096)
        except OSError:  # the other end is closed
            pass
        finally:
            process.kill()
            os.close(ours)
    assert b"KeyboardInterrupt" in seen
    text = seen.decode()
    for expected in ("epoch [1]", "epochs", "5/1000", "loss 2.5", "1/2"):
        assert expected in text, text
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert text.count(hidden) >= 1
    assert text.rindex(shown) > text.rindex(hidden)
    assert text.rindex(shown) < text.rindex("KeyboardInterrupt")


@pytest.mark.parametrize(("rank", "first"), [(0, True), (1, False)])
def test_which_process_shows_something(rank, first, monkeypatch):
    """The group's rank counts, whatever a launcher has left in the environment."""
    monkeypatch.setenv("RANK", str(1 - rank))
    monkeypatch.setattr("jaxpar._metrics.progress.current", lambda: SimpleNamespace(rank=rank))
    assert is_first() is first
