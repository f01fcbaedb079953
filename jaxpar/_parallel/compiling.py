"""Signs of life while a program is compiled: what, for how long, and how long it took.

torch runs its first step as fast as its second. Here the first one is traced and compiled, for minutes if the
model is large and the machine busy, and again after every restart; nothing can be seen meanwhile. So
whatever compiles for more than two seconds says so on stderr: one line that counts in a terminal, a line
now and then in a log. Process 0 speaks for all.

A call that compiles nothing pays for two assignments. That one does compile is known from the function that
JAX traces, which runs at no other time.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax

VARIABLE = "JAXPAR_COMPILING"
"""In the environment: `off` says nothing, `all` lets every process speak."""
QUIET = 2.0
"""Seconds for which nothing is said."""
LONG = 10.0
"""Seconds after which a cache is worth a word."""


class Compiling:
    """`with Compiling(describe):` around a call that may compile.

    Args:
      describe: gives what is compiled, in words; only called if something is said.
      rank: of this process; that of its launcher if left out.
    """

    __slots__ = ("_describe", "_ended", "_outer", "_rank", "_reporter", "_start")

    def __init__(self, describe: Callable[[], str], rank: int | None = None):
        self._describe, self._rank = describe, rank

    def __enter__(self) -> None:
        # What is traced inside of another program is a part of that one.
        self._outer = getattr(_this, "call", None)
        _this.call = self._outer or self
        self._reporter: threading.Thread | None = None
        self._start = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _this.call = self._outer
        if self._reporter is not None:
            self._ended.set()
            self._reporter.join()
            self._end(kind is None)

    def begin(self) -> None:
        """The program is being traced, so it is being compiled."""
        if self._reporter is None and _speaks(self._rank):
            self._ended = threading.Event()
            self._reporter = threading.Thread(target=self._report, name="jaxpar compiling", daemon=True)
            self._reporter.start()

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._start

    def _report(self) -> None:
        terminal, pause = sys.stderr.isatty(), QUIET
        while not self._ended.wait(pause):
            line = f"jaxpar: compiling {self._describe()} ... {self._seconds:.0f} s"
            _write(f"\r{line}" if terminal else f"{line}\n")
            pause = 1.0 if terminal else max(self._seconds, 10.0)  # in a log at 2, 12, 24, 48 seconds

    def _end(self, well: bool) -> None:
        seconds = self._seconds
        if seconds < QUIET:
            return
        what = "compiled" if well else "stopped compiling"
        _write(f"{_over()}jaxpar: {what} {self._describe()} in {seconds:.1f} s\n")
        if well and seconds > LONG:
            _suggest_cache()


_this = threading.local()


def begun() -> None:
    """To be called in a function that JAX traces: the call around it compiles."""
    call = getattr(_this, "call", None)
    if call is not None:
        call.begin()


def _speaks(rank: int | None) -> bool:
    wanted = os.environ.get(VARIABLE, "")
    first = os.environ.get("RANK", "0") in ("", "0") if rank is None else rank == 0
    return wanted != "off" and (first or wanted == "all")


def _over() -> str:
    """What begins a line in the place of the one that counted."""
    return "\r\x1b[K" if sys.stderr.isatty() else ""


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):  # a closed stderr must not end a training
        return


_suggested = False


def _suggest_cache() -> None:
    global _suggested
    if _suggested or jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return
    _suggested = True
    _write(
        "jaxpar: the next start can read it from a cache: set JAX_COMPILATION_CACHE_DIR to a folder, "
        "~/.cache/jax for one\n"
    )


def place_of(function: Any) -> str:
    """A function as `name at file.py:12`."""
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    if code is None:
        return name
    return f"{name} at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
