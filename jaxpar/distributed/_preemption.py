"""preempted: stop all ranks at the same step after SIGTERM, or the checkpoint would mix steps.

With a process group, JAX's preemption service agrees on the step; torchrun leaves that to the script.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING

from .._arguments import Count
from ..errors import BackendError
from .group import current

if TYPE_CHECKING:
    from signal import _HANDLER


class _Signal:
    """State of the SIGTERM handler, in one object so that tests can replace it."""

    watched = False
    came = False
    before: _HANDLER = None
    compared = (0, 0)
    """A group's generation, and the last step that JAX has compared there."""


_signal = _Signal()


def preempted(step: Count) -> bool:
    """Return whether this process must save and exit after this step. Call it once per step.

    Args:
      step: the step number, increasing, equal on all ranks; numbers may be left out.

    Returns:
      True at one step, the same on all ranks, after any rank has received SIGTERM. Without a group: True
      once SIGTERM has arrived; the first call from the main thread installs the handler.

    Raises:
      BackendError: JAX's preemption service is disabled (`JAX_ENABLE_PREEMPTION_SERVICE=0`).
    """
    group = current()
    if group is not None and group.size > 1:
        return _agreed(step, group.generation)
    # Python only lets the main thread install signal handlers.
    if not _signal.watched and threading.current_thread() is threading.main_thread():
        _signal.watched = True
        _signal.before = signal.signal(signal.SIGTERM, _remember)
    return _signal.came


def _agreed(step: int, generation: int) -> bool:
    from .._upstream import reached_preemption_sync_point

    # JAX's ranks agree on the step after the highest that any of them has just compared, 1 before the first,
    # and JAX compares for equality: a resumed run, or one that saves every tenth step, would pass it by.
    last = _signal.compared[1] if _signal.compared[0] == generation else 0
    _signal.compared = generation, step
    try:
        return any(reached_preemption_sync_point(i) for i in (*range(last + 1, step), step))
    except RuntimeError as error:
        raise BackendError(
            "preempted: JAX's preemption service is off, so the ranks cannot agree on a step; leave "
            "JAX_ENABLE_PREEMPTION_SERVICE alone."
        ) from error


def _remember(number: int, frame: FrameType | None) -> None:
    _signal.came = True
    if callable(_signal.before):
        _signal.before(number, frame)
