"""new_group: groups of some ranks. All ranks are connected already, so a group is a list of ranks."""

from __future__ import annotations

import collections
import dataclasses
import datetime
from collections.abc import Iterable

from .._arguments import NonNegative
from ..errors import DivergenceError, GroupError
from . import call_log
from ._backend import check_backend
from .exchange import exchange_json
from .group import Group, GroupMember, NonMember, default_group, forget, register
from .step_agreement import difference

_group_counts: collections.Counter[str] = collections.Counter()
"""Numbers of groups created so far: per default group and, with local synchronization, per list of ranks."""


def new_group(
    ranks: Iterable[int] | None = None,
    timeout: datetime.timedelta | NonNegative | None = None,
    backend: str | None = None,
    *,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    sort_ranks: bool = True,
) -> Group | NonMember | None:
    """Create a group of some ranks, for `group=` and `process_group=`. All ranks must call it.

    Args:
      ranks: ranks of the default group; all of them if omitted.
      timeout: how long members wait for each other, a timedelta or seconds; the default group's if omitted.
      backend: `"gloo"`, `"nccl"` or None; every group uses the default group's library.
      use_local_synchronization: whether only the members call it.
      group_desc: ignored; exists for torch's signature.
      sort_ranks: whether members are ordered by rank instead of in the order of `ranks`.

    Returns:
      The group. A rank outside the group gets `GroupMember.NON_GROUP_MEMBER`, or None with
      `use_local_synchronization`.

    Raises:
      GroupError: no process group is initialized, a rank does not exist or is repeated, or `backend` is
        unknown. DivergenceError: the ranks create different groups.

    torch counterpart: `torch.distributed.new_group`.

    >>> import jaxpar.distributed as dist
    >>> dist.init_process_group()
    >>> dist.get_world_size(dist.new_group([0]))
    1
    >>> dist.destroy_process_group()
    """
    del group_desc
    default = default_group()
    members = tuple(range(default.size)) if ranks is None else tuple(ranks)
    members = _checked(tuple(sorted(members)) if sort_ranks else members, default.size)
    timeout = default.timeout if timeout is None else timeout
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
    if not seconds > 0:
        raise GroupError(f"new_group: timeout must be positive, not {timeout}.")
    check_backend(backend, "new_group")
    is_member = default.rank in members
    if use_local_synchronization and not is_member:
        return None
    scope = f"group {'-'.join(map(str, members))}" if use_local_synchronization else "group"
    counter = f"{default.folder}/{scope}"
    _group_counts[counter] += 1
    name = f"{scope} {_group_counts[counter]}"
    rank = members.index(default.rank) if is_member else -1
    group = dataclasses.replace(
        default, rank=rank, size=len(members), timeout=float(seconds), ranks=members, name=name
    )
    if not is_member:
        _agree(default, group, default)
        return GroupMember.NON_GROUP_MEMBER
    # Registered before the ranks agree: a member's first message about the group may arrive at once.
    register(group)
    try:
        _agree(default, group, group if use_local_synchronization else default)
    except BaseException:
        forget(group)
        raise
    return group


def _checked(ranks: tuple[int, ...], size: int) -> tuple[int, ...]:
    for rank in ranks:
        if not isinstance(rank, int) or isinstance(rank, bool):
            raise GroupError(f"new_group: ranks are ints, not {rank!r}.")
    if len(set(ranks)) != len(ranks):
        raise GroupError(f"ranks list must not contain duplicate entries, got {list(ranks)}")
    for rank in ranks:
        if not 0 <= rank < size:
            raise GroupError(
                f"Rank {rank} is out of range. Valid ranks are 0 to {size - 1} (world_size={size})"
            )
    if not ranks:
        raise GroupError("new_group: a group needs a rank; leave ranks out for all of them.")
    return ranks


def _agree(default: Group, group: Group, among: Group) -> None:
    exchange_name = "new_group" if among is default else f"new_group {group.name}"
    parts = {"its ranks": str(list(group.ranks)), "its timeout": str(group.timeout)}
    line = call_log.line(call_log.call_site())
    parts_and_lines = exchange_json(exchange_name, [parts, line], default.timeout, among)
    parts_by_rank, lines = ({rank: pair[i] for rank, pair in parts_and_lines.items()} for i in range(2))
    if problem := difference(f"new_group, {group.name}", parts_by_rank, lines):
        raise DivergenceError(f"{problem} All ranks make all groups, in the same order.")
