"""Progress messages on stderr while process 0 compiles a program, which may take minutes."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

VARIABLE = (
    "JAXPAR_COMPILING"  # environment variable: `off` silences the messages, `all` lets every process report
)
QUIET = 2.0  # seconds before the first message
LONG = 10.0  # seconds of compiling after which the cache is suggested


class Compiling:
    """`with Compiling(describe):` around a call that may compile; `rank` is the launcher's if left out."""

    __slots__ = ("_describe", "_ended", "_outer", "_rank", "_reporter", "_start")

    def __init__(self, describe: Callable[[], str], rank: int | None = None):
        self._describe, self._rank = describe, rank

    def __enter__(self) -> None:
        # A program that is traced inside a different one belongs to it: only the outer one is reported.
        self._outer = getattr(_this, "call", None)
        _this.call = self._outer or self
        # No thread yet: nearly all calls are cached, and only tracing shows that one compiles (`begun`).
        self._reporter: threading.Thread | None = None
        self._start = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        _this.call = self._outer
        if self._reporter is not None:
            self._ended.set()
            self._reporter.join()
            self._end(kind is None)

    def begin(self) -> None:
        """Start reporting: the program is being traced, so it is being compiled."""
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
        overwrite = "\r\x1b[K" if sys.stderr.isatty() else ""
        _write(f"{overwrite}jaxpar: {what} {self._describe()} in {seconds:.1f} s\n")
        if well and seconds > LONG:
            _suggest_cache()


_this = threading.local()


def begun() -> None:
    """Report, from a function that JAX traces, that the call around it compiles."""
    call = getattr(_this, "call", None)
    if call is not None:
        call.begin()


def in_own_program() -> bool:
    """Return whether a program of jaxpar is being called, or traced for a call, in this thread."""
    return getattr(_this, "call", None) is not None


def _speaks(rank: int | None) -> bool:
    setting = os.environ.get(VARIABLE, "")
    # The launcher's variable: a group may not exist yet, and `jax.process_index` would start a backend.
    first = os.environ.get("RANK", "0") in ("", "0") if rank is None else rank == 0
    return setting != "off" and (first or setting == "all")


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
    """Return a function as `name at file.py:12`."""
    while hasattr(function, "func") or hasattr(function, "__wrapped__"):  # functools.partial, functools.wraps
        function = getattr(function, "func", None) or function.__wrapped__
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    if code is None:
        return name
    return f"{name} at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
