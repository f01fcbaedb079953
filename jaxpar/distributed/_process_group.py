"""init_process_group and destroy_process_group: the ranks meet, then JAX starts in all of them.

Arguments and variables are torch's. What differs: the ranks find each other in a short rendezvous before
`jax.distributed` starts, so that whatever is wrong is a Python exception on every rank; a process that is
alone is a world of one without any network; and an exception that leaves one rank's script ends the other
ranks, which would otherwise wait for it in a collective.
"""

from __future__ import annotations

import atexit
import datetime
import logging
import os
import threading

from .._devices import virtual as _virtual
from ..errors import BackendError, DistributedError, DivergenceError, GroupError
from . import _deadlock_watch, _fail_together, _messages, attendance, secret, step_agreement, whereabouts
from ._backend import check_backend, check_platform
from ._environment import Start, find, heartbeat
from ._rendezvous import meet
from .exchange import exchange
from .group import Group, NonMember, ProcessGroup, current, default_group, enter, forget, leave, registered

TIMEOUT = datetime.timedelta(seconds=300)
SHUTDOWN = 15
"""Seconds that JAX waits at its own shutdown, and after which a rank says that it waits for the others."""

_log = logging.getLogger("jaxpar")


def init_process_group(
    backend: str | None = None,
    init_method: str | None = "env://",
    *,
    timeout: datetime.timedelta | float = TIMEOUT,
    world_size: int = -1,
    rank: int = -1,
) -> None:
    """Joins the group. Make the same call in every process, before anything uses JAX.

    Args:
      backend: `"gloo"` (CPU devices) or `"nccl"` (NVIDIA GPUs) to insist on one; None takes what fits.
      init_method: `"env://"` reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or the variables of SLURM,
        Open MPI, Kubernetes or a TPU pod; without any of them the process is alone. `"tcp://host:port"`
        needs `rank` and `world_size`.
      timeout: how long to wait for the other ranks, here and in `barrier`; a timedelta or seconds.
      world_size, rank: override the variables.

    Raises:
      GroupError: bad or missing arguments or variables; there is a group already (torch's ValueErrors).
      DistributedError: ranks are missing, do not fit together, or cannot reach rank 0. All ranks that
        are there raise the same text.
      BackendError: JAX has started already, or runs on another platform than `backend` needs.

    torch counterpart: `torch.distributed.init_process_group`.
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
    """Leaves the group together with all other ranks; another one can be joined after it.

    Args:
      group: a group of `new_group`, which only this rank forgets; the default one if left out.

    It waits for the other ranks as long as `init_process_group` does. The arrays of the group are gone after
    it, because JAX's backend starts anew. Without the call, the end of the process does the same.

    Raises:
      GroupError: there is no group. DistributedError: other ranks do not come.

    torch counterpart: `torch.distributed.destroy_process_group`, which does not wait.
    """
    default = default_group()
    if isinstance(group, NonMember):
        return
    if group is not None and registered(group, "destroy_process_group") is not default:
        forget(registered(group, "destroy_process_group"))
        return
    if default.size > 1:
        _part(default)
        _restart()
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
    _messages.on("question", step_agreement.hear)
    _messages.on("attend", attendance.hear)
    _fail_together.watch()
    _messages.start(group)
    _deadlock_watch.start(group)
    atexit.register(_at_end)


def _devices_of(start: Start) -> list[int] | None:
    """The GPU of LOCAL_RANK if a host has several processes, which is torch's rule. None leaves it to JAX."""
    if start.local_rank is None or (start.local_size or 1) == 1 or os.environ.get("JAX_LOCAL_DEVICE_IDS"):
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and len(visible.split(",")) <= start.local_rank:
        return None  # the launcher has given this process devices of its own
    return [start.local_rank]


def _refuse_running() -> None:
    from .._upstream import backends_are_initialized

    if backends_are_initialized():
        raise BackendError(
            "init_process_group: JAX has started already, alone, and cannot join a group any more. Call it "
            "before anything makes an array or asks for devices; `import jax` is fine."
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
    """Waits until all ranks are at their end. Then JAX's own shutdown neither waits nor aborts."""
    import jax

    text = "rank %s is at its end and waits for the others, which it would end by leaving."
    reminder = threading.Timer(SHUTDOWN, _log.warning, (text, group.rank))
    reminder.daemon = True
    reminder.start()
    try:
        exchange("end", "", group.timeout, label=whereabouts.END)
    finally:
        reminder.cancel()
    atexit.unregister(_at_end)
    _deadlock_watch.stop()
    _messages.stop()
    _fail_together.forget()
    step_agreement.forget()
    attendance.forget()
    jax.distributed.shutdown()


def _restart() -> None:
    import jax

    from .._upstream import clear_backends

    clear_backends()
    jax.clear_caches()


def _at_end() -> None:
    group = current()
    if group is None:
        return
    try:
        _part(group)
    except (DistributedError, DivergenceError) as error:
        _fail_together.go(f"rank {group.rank} is at its end: {error}")
