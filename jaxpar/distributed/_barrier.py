"""Barriers: all ranks are here, or the ones that are not are named.

Both wait on the host, through the coordinator's key-value store; no device is involved, and work that a
device still has to do is not waited for (`jax.block_until_ready` does that).
"""

from __future__ import annotations

import datetime

from ..errors import DistributedError
from .exchange import collect, exchange
from .group import default_group


def barrier() -> None:
    """Wait for all ranks, as long as the group's timeout.

    Raises:
      GroupError: there is no group. DistributedError: ranks did not come, by number.

    torch counterpart: `torch.distributed.barrier`.
    """
    exchange("barrier", "", default_group().timeout)


def monitored_barrier(
    timeout: datetime.timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """Wait for all ranks and name those that did not come.

    Args:
      timeout: a timedelta or seconds; the group's if left out.
      wait_all_ranks: name all of them and not the first only, as in torch.

    Raises:
      GroupError: there is no group. DistributedError: with torch's text, on every rank that came; torch
        tells the other ranks to ask rank 0.

    torch counterpart: `torch.distributed.monitored_barrier`, which needs gloo; this needs nothing.
    """
    group = default_group()
    if timeout is None:
        timeout = group.timeout
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)
    texts = collect("monitored_barrier", "", seconds)
    missing = [rank for rank, text in enumerate(texts) if text is None]
    if not missing:
        return
    named = missing if wait_all_ranks else missing[:1]
    raise DistributedError(
        f"Rank{'s' * (len(named) > 1)} {', '.join(map(str, named))} failed to pass monitoredBarrier in "
        f"{seconds * 1000:.0f} ms"
    )
