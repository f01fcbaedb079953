"""init_process_group and destroy_process_group.

Unlike in torch, every problem is an exception on every rank, and an uncaught exception on one rank ends the
other ranks, which would otherwise hang in a collective.
"""

from __future__ import annotations

import atexit
import datetime
import logging
import os
import threading

from .._arguments import NonNegative
from .._devices import virtual as _virtual
from ..errors import BackendError, DistributedError, DivergenceError, GroupError
from . import _deadlock_watch, _fail_together, _messages, call_log, partial_exchange, secret, step_agreement
from ._backend import check_backend, check_platform
from ._environment import Start, find, heartbeat
from ._rendezvous import meet
from .exchange import exchange
from .group import Group, NonMember, ProcessGroup, current, default_group, enter, forget, leave, registered

TIMEOUT = datetime.timedelta(seconds=300)
SHUTDOWN = 15
"""Seconds of JAX's shutdown timeout, and until a finished rank logs that it waits for the others."""

_log = logging.getLogger("jaxpar")


def init_process_group(
    backend: str | None = None,
    init_method: str | None = "env://",
    *,
    timeout: datetime.timedelta | NonNegative = TIMEOUT,
    world_size: int = -1,
    rank: int = -1,
) -> None:
    """Join the default process group. Call it in every process, before JAX is used.

    Args:
      backend: `"gloo"` (CPU devices) or `"nccl"` (NVIDIA GPUs) to require one; None accepts the platform's.
      init_method: `"env://"` reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or the variables of SLURM,
        Open MPI, Kubernetes or a TPU pod; without any of them the world size is 1. `"tcp://host:port"`
        needs `rank` and `world_size`.
      timeout: how long to wait for the other ranks, in this call and in `barrier`; a timedelta or seconds.
      world_size, rank: override the variables.

    Raises:
      GroupError: invalid or missing arguments or variables; a group exists already (torch's ValueErrors).
      DistributedError: ranks are missing, contradict each other, or cannot reach rank 0. All ranks that
        arrived raise the same text.
      BackendError: JAX has started already, or runs on a different platform than `backend` needs.

    torch counterpart: `torch.distributed.init_process_group`.

    >>> import jaxpar.distributed as dist
    >>> dist.init_process_group()
    >>> dist.get_world_size()
    1
    >>> dist.destroy_process_group()
    """
    if current() is not None:
        raise GroupError("trying to initialize the default process group twice!")
    check_backend(backend, "init_process_group")
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)
    if not seconds > 0:
        raise GroupError(f"init_process_group: timeout must be positive, not {timeout}.")
    start = find(init_method, world_size, rank, seconds)
    _virtual.from_environment()
    if start.size == 1:
        enter(0, 1, "", 1, seconds)
    else:
        heartbeat(1)  # raises if its variable is wrong, before this rank meets the others
        _refuse_running()
        _join(start, seconds)
    try:
        check_platform(backend, "init_process_group")
        _check_devices()
    except BaseException:
        if start.size == 1:
            leave()
        raise


def destroy_process_group(group: ProcessGroup = None) -> None:
    """Leave the process group together with all other ranks. A new group can be joined afterwards.

    Waits for the other ranks up to the group's timeout. Arrays made in the group are deleted, because JAX's
    backend restarts. Without this call, the end of the process does the same.

    Args:
      group: a group from `new_group`, which is removed on this rank only; the default group if omitted.

    Raises:
      GroupError: no process group is initialized. DistributedError: ranks did not arrive.

    torch counterpart: `torch.distributed.destroy_process_group`, which does not wait.
    """
    default = default_group()
    if isinstance(group, NonMember):
        return
    if group is not None and registered(group, "destroy_process_group") is not default:
        forget(registered(group, "destroy_process_group"))
        return
    if default.size > 1:
        import jax

        from .._upstream import clear_backends

        _part(default)
        clear_backends()
        jax.clear_caches()
    leave()


def _join(start: Start, timeout: float) -> None:
    import jax

    meeting = meet(start, timeout, secret=secret.find())
    group = enter(start.rank, start.size, start.address, meeting.hosts, timeout)
    try:
        jax.distributed.initialize(
            start.address,
            start.size,
            start.rank,
            local_device_ids=_devices_of(start),
            cluster_detection_method="deactivate",
            coordinator_bind_address=meeting.bind,
            initialization_timeout=max(1, int(timeout)),
            heartbeat_timeout_seconds=heartbeat(meeting.hosts),
            shutdown_timeout_seconds=SHUTDOWN,
        )
    except BaseException:
        leave()
        raise
    finally:
        if meeting.hold is not None:
            meeting.hold.close()
    # Listeners come before the thread that calls them: a fast rank may send its first message at once.
    _messages.on("question", step_agreement.hear)
    _messages.on("attend", partial_exchange.hear)
    _fail_together.watch()
    _messages.start(group)
    _deadlock_watch.start(group)
    atexit.register(_at_end)


def _devices_of(start: Start) -> list[int] | None:
    if start.local_rank is None or (start.local_size or 1) == 1 or os.environ.get("JAX_LOCAL_DEVICE_IDS"):
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and len(visible.split(",")) <= start.local_rank:
        return None  # the launcher has restricted this process to its own devices
    return [start.local_rank]


def _refuse_running() -> None:
    from .._upstream import backends_are_initialized
    from .._upstream.start import started_by

    if backends_are_initialized():
        raise BackendError(
            "init_process_group: JAX has started already, alone, and cannot join a group any more. "
            f"{started_by()}. Call init_process_group before anything makes an array or asks for devices; "
            "`import jax` is fine."
        )


def _check_devices() -> None:
    import jax

    device_texts = exchange("devices", f"{jax.local_device_count()} {jax.default_backend()}")
    counts = [f"rank {rank} has {devices}" for rank, devices in enumerate(device_texts)]
    if len(set(device_texts)) > 1:
        raise DistributedError(
            f"init_process_group: {', '.join(counts)} devices. All ranks need as many of the same kind: see "
            "CUDA_VISIBLE_DEVICES, JAX_NUM_CPU_DEVICES and JAXPAR_DEVICES in each."
        )


def _part(group: Group) -> None:
    import jax

    text = "rank %s is at its end and waits for the others, which it would end by leaving."
    reminder = threading.Timer(SHUTDOWN, _log.warning, (text, group.rank))
    reminder.daemon = True
    reminder.start()
    try:
        exchange("end", "", group.timeout, label=call_log.END)
    finally:
        reminder.cancel()
    atexit.unregister(_at_end)
    _deadlock_watch.stop()
    _messages.stop()
    _fail_together.forget()
    step_agreement.forget()
    partial_exchange.forget()
    jax.distributed.shutdown()


def _in_child() -> None:
    """Let a child of `os.fork` end alone. It has the group's rank, but none of the threads that serve it."""
    group = current()
    if group is not None and group.size > 1:
        from .._upstream import fork

        # The message thread, which the child lacks, may have held the lock.
        call_log.machine = threading.RLock()
        atexit.unregister(_at_end)
        _fail_together.forget()
        fork.abandon()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_child)


def _at_end() -> None:
    group = current()
    if group is None:
        return
    try:
        _part(group)
    except (DistributedError, DivergenceError) as error:
        _fail_together.go(f"rank {group.rank} is at its end: {error}")
