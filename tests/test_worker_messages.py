"""What worker processes send comes back as it was, and leaves neither descriptors nor memory behind."""

from __future__ import annotations

import collections
import gc
import multiprocessing
import os
import threading

import ml_dtypes
import numpy as np
import pytest

from jaxpar.data import _worker_messages as messages

Point = collections.namedtuple("Point", "x y")
LARGE = np.arange(messages.SMALL // 4 + 3, dtype=np.float32)

BATCHES = {
    "nothing": None,
    "text": ["a", "b"] * 50_000,
    "small": [np.arange(3), np.float32(1.5)],
    "large": LARGE,
    "large and small": {
        "x": LARGE,
        "y": np.arange(5, dtype=np.int8),
        "name": ["a"],
        "z": Point(LARGE[:7], 1),
    },
    "empty arrays": [np.zeros((0, 3)), LARGE, np.zeros((2, 0), np.int8)],
    "no axes": [np.array(2.5), LARGE],
    "columns first": np.asfortranarray(LARGE[:-3].reshape(4, -1)),
    "every second": np.arange(2 * messages.SMALL)[::2],
    "bfloat16": LARGE.astype(ml_dtypes.bfloat16),
    "text in arrays": [np.array(["a", "bcd"]), LARGE],
    "objects": np.array([{"a": 1}, None], dtype=object),
    "the same twice": [LARGE, LARGE],
}


def through(*contents):
    """What arrives of each."""
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        sender = threading.Thread(target=lambda: [messages.pack(c).send(theirs) for c in contents])
        sender.start()
        got = [messages.receive(ours).unpack() for _ in contents]
        sender.join()
    return got


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tolist() == b.tolist()
        assert b.flags.writeable
    elif isinstance(a, dict):
        assert list(a) == list(b)
        same([*a.values()], [*b.values()])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b


@pytest.mark.parametrize("kind", BATCHES)
def test_what_arrives_is_what_was_sent(kind):
    (got,) = through(BATCHES[kind])
    same(BATCHES[kind], got)


def test_several_in_a_row():
    for sent, got in zip(BATCHES.values(), through(*BATCHES.values()), strict=True):
        same(sent, got)


@pytest.mark.parametrize(
    "fault", [LARGE + 1, LARGE.astype(np.float64), LARGE[:-1], [LARGE]], ids=lambda x: ""
)
def test_a_planted_difference_is_found(fault):
    with pytest.raises(AssertionError):
        same(LARGE, fault)


def test_large_arrays_are_mapped_and_small_ones_are_not(monkeypatch):
    wrote, write = [], messages._write
    monkeypatch.setattr(messages, "_write", lambda *args: (wrote.append(args[2]), write(*args)))
    through(LARGE, np.arange(3))
    assert wrote == [0]


def test_arrays_begin_where_numpy_would_let_them():
    (got,) = through([np.arange(3, dtype=np.int8), LARGE, np.arange(9)])
    assert all(x.ctypes.data % messages.ALIGNMENT == 0 for x in got)


@pytest.mark.full
def test_more_batches_than_may_be_mapped(monkeypatch):
    """Those beyond are copies, so that a list of all batches does not use up the descriptors."""
    gc.collect()
    monkeypatch.setattr(messages, "MAPPED", len(messages._maps) + 3)
    before = len(os.listdir("/proc/self/fd"))
    got = through(*[LARGE + i for i in range(8)])
    for i, x in enumerate(got):
        same(LARGE + i, x)
    assert len(os.listdir("/proc/self/fd")) <= before + 3
    del got, x
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def test_errors_travel_with_their_notes():
    error = KeyError("a")
    error.add_note("here")
    (sent,) = through(messages.raised(error, 3))
    again = sent.restored()
    assert (type(again), str(again), again.__notes__) == (KeyError, "'a'", ["here"])
    assert str(again.__cause__).startswith("Caught KeyError in DataLoader worker process 3.\nOriginal")
    odd = Odd(1, 2)
    odd.add_note("there")
    (sent,) = through(messages.raised(odd, 0))
    again = sent.restored()
    assert (type(again), str(again), again.__notes__) == (RuntimeError, "Odd: 1 and 2", ["there"])
