"""preempted: has anybody been asked to stop, and is this the step at which all ranks do?

Schedulers send SIGTERM to some or all processes of a job some time before they end it. The ranks have to
agree on one step after which they save, or the checkpoint is a mixture. With a group this is JAX's
preemption service, which takes SIGTERM from `init_process_group` on; alone it is a flag.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from ..errors import BackendError
from .group import size


class _Signal:
    watched = False
    came = False
    before: Any = None


_signal = _Signal()


def preempted(step: int) -> bool:
    """Whether this process is to save and leave after this step. Ask once in every step.

    Args:
      step: the number of the step, the same on all ranks, growing.

    Returns:
      True at one step that is the same on all ranks, after SIGTERM reached any of them. Alone: True once
      SIGTERM came. The first call, from the main thread, begins to watch for it; a handler that was there
      before is called too.

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
    from jax.experimental import multihost_utils

    try:
        return multihost_utils.reached_preemption_sync_point(step)
    except RuntimeError as error:
        raise BackendError(
            "preempted: JAX's preemption service is off, so the ranks cannot agree on a step; leave "
            "JAX_ENABLE_PREEMPTION_SERVICE alone."
        ) from error


def _remember(number: int, frame: FrameType | None) -> None:
    _signal.came = True
    if callable(_signal.before):
        _signal.before(number, frame)
