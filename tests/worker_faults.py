"""Data sets that go wrong in worker processes; in a file of their own, because processes import them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import numpy as np


class Rows:
    """Row i is i, but for one row, at which the worker does something else."""

    def __init__(self, bad=None, act=None, n=12):
        self.bad, self.act, self.n = bad, act, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.act() if i == self.bad else i


class Large(Rows):
    """Rows of 800 kB, with the number of the worker's process."""

    def __getitem__(self, i):
        super().__getitem__(i)
        return np.full(100_000, i, np.float64), os.getpid()


class Slow(Rows):
    """Rows that take seconds, after a first one that does not."""

    def __init__(self, seconds, n=12):
        super().__init__(n=n)
        self.seconds = seconds

    def __getitem__(self, i):
        if i:
            time.sleep(self.seconds)
        return os.getpid()


class Gated(Rows):
    """Rows that wait for a file, and say so by another, but for the first one."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def __getitem__(self, i):
        if i:
            self.gate.with_name(f"row {i} waits").touch()
        while i and not self.gate.exists():
            time.sleep(0.01)
        return i


class Stream:
    """A stream that ends with an error, or with its worker."""

    def __init__(self, act):
        self.act = act

    def __iter__(self):
        yield from range(3)
        self.act()
        yield from range(3, 6)


class WithoutArguments(Exception):
    """Cannot be made again from what pickle keeps of it."""

    def __init__(self, path, line):
        super().__init__(f"{path}:{line}")


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def crashed():
    ctypes.string_at(0)


def left():
    os._exit(3)


def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
    return -1


def leaves_quietly():
    sys.exit(0)


def raises_ctrl_c():
    raise KeyboardInterrupt


def leaves_at_once(worker):
    sys.exit(0)


def key_error():
    raise KeyError("wonderful")


def own_error():
    raise WithoutArguments("cat.jpg", 7)


def a_lambda():
    return lambda: 0


def no_start(worker):
    raise OSError("no licence")


def as_it_is(samples):
    return samples
