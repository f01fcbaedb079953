"""Run the user's script in a worker process, as `python script.py` would.

An exception must end it at once: Python's normal exit would first run JAX's shutdown, which waits for the
other processes, which wait for this one. The file imports only the standard library and `_training.watchdog`.
"""
# ruff: noqa: E402 (the path comes first)

import os
import re
import sys

LOST_PEER = re.compile(r"\b(Gloo|NCCL)\b.*\b(failed|[Ee]rror)|Connection (closed|reset) by peer")
UNSAFE = not sys.flags.safe_path
"""Whether Python prepends the script's folder to the path, which `-P` turns off."""

if UNSAFE and __name__ == "__main__":
    del sys.path[0]  # this file's folder, whose `output` or `report` would hide the user's modules

import atexit
import faulthandler
import fcntl
import runpy
import select
import signal
import threading
import time
import types

from jaxpar._training.watchdog import BEAT_FILE, LIFELINE, Marks

PULSE = 0.5
"""Seconds between two signs that this process's interpreter runs."""


def main() -> None:
    """Run the script; `sys.argv` has `script` or `module`, the path or name, and the script's arguments."""
    hold(int(os.environ.pop(LIFELINE)))
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2)
    marks = Marks(os.environ[BEAT_FILE])
    # Exit handlers run in reverse order, so this one, registered first, runs last.
    atexit.register(marks.cells.__setitem__, Marks.DONE, 1)
    threading.Thread(target=pulse, args=(marks,), name="jaxpar pulse", daemon=True).start()
    kind, target, *_ = sys.argv[1:]
    sys.argv[:] = sys.argv[2:]
    if UNSAFE:
        sys.path.insert(0, os.getcwd() if kind == "module" else os.path.dirname(os.path.realpath(target)))
    try:
        if kind == "module":
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target, run_name="__main__")
    except SystemExit as wish:
        # Regular ends, with exit handlers: success, and a preemption after which the state was saved.
        if wish.code in (None, 0, 75):
            raise
        marks.cells[Marks.FAILED] = time.monotonic_ns()
        leave(wish.code)
    except BaseException as error:
        code = 1
        try:
            marks.cells[Marks.LOST_PEER] = lost_peer(error)
            marks.cells[Marks.FAILED] = time.monotonic_ns()
            code = code_of(error)
            error.__traceback__ = user_frames(error.__traceback__)
            sys.excepthook(type(error), error, error.__traceback__)
        finally:  # the hook fails, too, where there is no memory
            leave(code)


def pulse(marks: Marks) -> None:
    while True:
        marks.cells[Marks.PULSES] += 1
        time.sleep(PULSE)


def leave(code: object) -> None:
    """End the process with the code of `sys.exit(code)`, without running exit handlers."""
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 255)


def lost_peer(error: BaseException) -> int:
    """Return 2 + rank if the error is that peer's, 1 if it follows from a peer's end, else 0."""
    from jaxpar.errors import DistributedError

    number = getattr(error, "of_rank", None)
    if number is not None:
        return 0 if str(number) == os.environ["RANK"] else 2 + number
    return int(isinstance(error, DistributedError) or bool(LOST_PEER.search(str(error))))


def code_of(error: BaseException) -> int:
    from jaxpar.errors import GroupError

    if isinstance(error, KeyboardInterrupt):
        return 130
    return 78 if isinstance(error, GroupError) else 1  # wrong variables would be wrong again after a restart


def user_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback without the frames before the user's first."""
    while trace and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return trace


def hold(pipe: int) -> None:
    """End this process and its children when the other end of the pipe closes."""
    os.set_inheritable(pipe, False)
    if not hasattr(fcntl, "F_SETSIG"):
        threading.Thread(target=follow, args=(pipe,), daemon=True).start()
        return
    # On Linux the kernel sends the signal, because a thread could not run while C++ code holds the GIL.
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:  # closed before O_ASYNC was set
        follow(pipe)


def follow(pipe: int) -> None:
    os.read(pipe, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
