"""Barriers that name the ranks which did not arrive. They wait on the host, not for queued device work."""

from __future__ import annotations

import datetime

from .._arguments import NonNegative
from ..errors import DistributedError
from .exchange import collect, exchange
from .group import ProcessGroup, member


def barrier(group: ProcessGroup = None) -> None:
    """Wait for all ranks of the group, up to the group's timeout.

    Raises:
      GroupError: no process group is initialized. DistributedError: names the ranks that did not arrive.

    torch counterpart: `torch.distributed.barrier`.

    >>> import jaxpar.distributed as dist
    >>> dist.init_process_group()
    >>> dist.barrier()
    >>> dist.destroy_process_group()
    """
    if (pg := member(group, "barrier")) is not None:
        exchange("barrier", "", pg.timeout, pg)


def monitored_barrier(
    group: ProcessGroup = None,
    timeout: datetime.timedelta | NonNegative | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Wait for all ranks of the group and name the ranks that did not arrive.

    Args:
      group: the default group if omitted.
      timeout: a timedelta or seconds; the group's timeout if omitted.
      wait_all_ranks: whether to name every absent rank or, as in torch, only the first.

    Raises:
      GroupError, as `barrier`. DistributedError: torch's text, on every rank that arrived.

    torch counterpart: `torch.distributed.monitored_barrier`, which needs gloo; this works on every backend.
    """
    if (pg := member(group, "monitored_barrier")) is None:
        return
    if timeout is None:
        timeout = pg.timeout
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)
    # `collect` rather than `exchange`, whose error has jaxpar's text: scripts match torch's.
    texts = collect("monitored_barrier", "", seconds, pg)
    absent_ranks = [rank for rank, text in zip(pg.ranks, texts, strict=True) if text is None]
    if not absent_ranks:
        return
    reported_ranks = absent_ranks if wait_all_ranks else absent_ranks[:1]
    raise DistributedError(
        f"Rank{'s' * (len(reported_ranks) > 1)} {', '.join(map(str, reported_ranks))} failed to pass "
        f"monitoredBarrier in {seconds * 1000:.0f} ms"
    )
