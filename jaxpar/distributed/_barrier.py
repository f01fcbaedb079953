"""Barriers: all ranks are here, or those that are not are named.

Both wait on the host, through the coordinator's key-value store. No device is involved, and neither waits for
work that a device still has to do, as torch's barrier with NCCL does; `jax.block_until_ready` does that.
"""

from __future__ import annotations

import datetime

from ..errors import DistributedError
from .exchange import collect, exchange
from .group import ProcessGroup, member


def barrier(group: ProcessGroup = None) -> None:
    """Waits for all ranks of the group, up to its timeout.

    Raises:
      GroupError: there is no group. DistributedError: ranks did not come; names them.

    torch counterpart: `torch.distributed.barrier`.
    """
    if (pg := member(group, "barrier")) is not None:
        exchange("barrier", "", pg.timeout, pg)


def monitored_barrier(
    group: ProcessGroup = None,
    timeout: datetime.timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Waits for all ranks of the group and names those that did not come.

    Args:
      group: whose ranks; the default group's if left out.
      timeout: a timedelta or seconds; by default the group's.
      wait_all_ranks: whether to name all of them or, as in torch, only the first.

    Raises:
      GroupError: there is no group. DistributedError: with torch's text, on every rank that came; in torch
        only rank 0 knows it.

    torch counterpart: `torch.distributed.monitored_barrier`, which needs gloo; this works on every backend.
    """
    if (pg := member(group, "monitored_barrier")) is None:
        return
    if timeout is None:
        timeout = pg.timeout
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)
    texts = collect("monitored_barrier", "", seconds, pg)
    absent_ranks = [rank for rank, text in zip(pg.ranks, texts, strict=True) if text is None]
    if not absent_ranks:
        return
    reported_ranks = absent_ranks if wait_all_ranks else absent_ranks[:1]
    raise DistributedError(
        f"Rank{'s' * (len(reported_ranks) > 1)} {', '.join(map(str, reported_ranks))} failed to pass "
        f"monitoredBarrier in {seconds * 1000:.0f} ms"
    )
