"""A thread that detects ranks waiting for each other in different calls, and raises on all of them.

After QUIET seconds without a call it publishes the rank's calls and reads the other ranks' (`call_log`). The
last rank to publish sees all the others and sends the error to all. A main thread that waits on the host
raises it. One inside a compiled program cannot, because XLA's collectives cannot be aborted; this thread then
ends the process after GRACE seconds, as if a peer had raised.
"""

from __future__ import annotations

import json
import logging
import threading

from ..errors import DistributedError
from . import _fail_together, _messages, call_log, step_agreement
from .call_log import Begun, CallLog, deadlock
from .exchange import PREFIX, post, read_folder
from .group import Group, ranks_text

TICK, QUIET, GRACE = 0.5, 3.0, 3.0
"""Seconds between two polls of the call counter; without a call, until the ranks are compared; for the main
thread to raise."""
SILENT = 10.0
"""Seconds after which a rank that waits on the host logs a warning, and again after twice the time."""

_log = logging.getLogger("jaxpar")


class Watch:
    def __init__(self, group: Group):
        self._call_log = call_log.enter(group)
        self._folder = f"{PREFIX}/{group.generation}/places"
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jaxpar watch", daemon=True)
        _messages.on("apart", self._hear)
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(5)

    def _run(self) -> None:
        log, number, quiet, silent = self._call_log, -1, 0.0, SILENT
        looked = True
        while not self._end.wait(TICK):
            if log.number != number:
                number, quiet, silent, looked = log.number, 0.0, SILENT, False
                continue
            quiet += TICK
            if quiet >= QUIET and not looked:
                looked = True
                if not self._look():
                    return
            if quiet >= silent and log.waits_for:
                silent *= 2
                self._say(quiet)

    def _look(self) -> bool:
        """Compare the calls of all ranks; return False if the coordinator has ended, which JAX reports."""
        rank = self._call_log.group.rank
        # Among equal numbers the first is named, so a new step must follow the call that contains it.
        positions = self._call_log.calls() | step_agreement.positions(self._call_log.number)
        try:
            # Written before reading: if two ranks do this at once, at least one sees the other's calls.
            post(f"{self._folder}/{rank}", json.dumps(positions), replace=True)
            positions_by_rank = {
                int(key.rpartition("/")[2]): _read(text) for key, text in read_folder(self._folder).items()
            }
            if text := deadlock(positions_by_rank | {rank: positions}, rank):
                _messages.send("apart", text=text)
        except DistributedError:
            return False
        return True

    def _say(self, seconds: float) -> None:
        log = self._call_log
        waits = ranks_text(log.waits_for)
        _log.warning("rank %s has waited %.0f s in %s for %s.", log.group.rank, seconds, log.last, waits)

    def _hear(self, message: _messages.Message) -> None:
        if not self._call_log.problem:
            self._call_log.problem = message["text"]
            # This thread receives the messages and must not sleep itself.
            timer = threading.Timer(GRACE, _leave, (self._call_log,))
            timer.daemon = True
            timer.start()


def _read(text: str) -> dict[str, Begun]:
    return {name: Begun(*fields) for name, fields in json.loads(text).items()}


def _leave(log: CallLog) -> None:
    # The main thread may have raised in the meantime, and its own exception is then the better report.
    if not log.raised:
        _fail_together.go(
            f"[rank {log.group.rank}] jaxpar.errors.DivergenceError: {log.problem}", log.problem
        )


_watch: list[Watch] = []


def start(group: Group) -> None:
    _watch.append(Watch(group))


def stop() -> None:
    while _watch:
        _watch.pop().stop()
    call_log.leave()
