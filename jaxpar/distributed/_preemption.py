"""preempted: stop all ranks at the same step after SIGTERM, or the checkpoint would mix steps.

With a process group, JAX's preemption service agrees on the step; torchrun leaves that to the script.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING

from ..errors import BackendError
from .group import size

if TYPE_CHECKING:
    from signal import _HANDLER


class _Signal:
    """State of the SIGTERM handler, in one object so that tests can replace it."""

    watched = False
    came = False
    before: _HANDLER = None


_signal = _Signal()


def preempted(step: int) -> bool:
    """Return whether this process must save and exit after this step. Call it once per step.

    Args:
      step: the step number, increasing, equal on all ranks.

    Returns:
      True at one step, the same on all ranks, after any rank has received SIGTERM. Without a group: True
      once SIGTERM has arrived; the first call from the main thread installs the handler.

    Raises:
      BackendError: JAX's preemption service is disabled (`JAX_ENABLE_PREEMPTION_SERVICE=0`).
    """
    if size() > 1:
        return _agreed(step)
    # Python only lets the main thread install signal handlers.
    if not _signal.watched and threading.current_thread() is threading.main_thread():
        _signal.watched = True
        _signal.before = signal.signal(signal.SIGTERM, _remember)
    return _signal.came


def _agreed(step: int) -> bool:
    from .._upstream import reached_preemption_sync_point

    try:
        return reached_preemption_sync_point(step)
    except RuntimeError as error:
        raise BackendError(
            "preempted: JAX's preemption service is off, so the ranks cannot agree on a step; leave "
            "JAX_ENABLE_PREEMPTION_SERVICE alone."
        ) from error


def _remember(number: int, frame: FrameType | None) -> None:
    _signal.came = True
    if callable(_signal.before):
        _signal.before(number, frame)
