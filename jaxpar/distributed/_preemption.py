"""preempted: has any rank been asked to stop, and is this the step at which all of them do?

Schedulers send SIGTERM to some or all processes of a job some time before they end it. The ranks have to
agree on one step after which they save, or the checkpoint is a mixture. With a group JAX's preemption
service does this, which takes SIGTERM over from `init_process_group` on. Alone it is a flag. torchrun
passes SIGTERM on and leaves the rest to the script.
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
    """What is known of SIGTERM: one object, so that a test can have another."""

    watched = False
    came = False
    before: _HANDLER = None


_signal = _Signal()


def preempted(step: int) -> bool:
    """Whether this process has to save and leave after this step. Ask once in every step.

    Args:
      step: the number of the step, the same on all ranks, growing.

    Returns:
      True at one step that is the same on all ranks, after SIGTERM has reached any of them. Alone: True as
      soon as SIGTERM has come. The first call from the main thread installs a handler, which calls the one
      that was there before.

    Raises:
      BackendError: JAX's preemption service is switched off (`JAX_ENABLE_PREEMPTION_SERVICE=0`).
    """
    if size() > 1:
        return _agreed(step)
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
