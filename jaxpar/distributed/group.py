"""Process groups: the default group, which is global state as in torch, and its subgroups.

Inside jaxpar use `rank()` and `size()`, which return 0 and 1 without a group and never start JAX.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Final

from .._arguments import warn
from ..errors import GroupError


@dataclasses.dataclass(frozen=True)
class Group:
    """A process group, as seen by one member.

    Attributes:
      rank, size: this process's rank in the group, and the number of members.
      address: rank 0's `host:port`; "" if the world size is 1.
      hosts: the number of hosts.
      timeout: seconds that members wait for each other.
      generation: the number of default groups that this process has joined so far.
      ranks: the members' ranks in the default group.
      name: the subgroup's name; "" for the default group.

    torch counterpart: `torch.distributed.ProcessGroup`.
    """

    rank: int
    size: int
    address: str
    hosts: int
    timeout: float
    generation: int
    ranks: tuple[int, ...]
    name: str = ""

    @property
    def me(self) -> int:
        return self.ranks[self.rank]

    @property
    def folder(self) -> str:
        return f"{self.generation}/{self.name}" if self.name else str(self.generation)

    @functools.cached_property
    def numbers(self) -> dict[int, int]:
        return {rank: i for i, rank in enumerate(self.ranks)}

    def __str__(self) -> str:
        return f"of ranks {list(self.ranks)}" if self.name else "of all ranks"


class NonMember:
    ranks = ()

    def __repr__(self) -> str:
        return "GroupMember.NON_GROUP_MEMBER"


class _Members(type):
    @property
    def WORLD(cls) -> Group | None:
        """The default group; None before `init_process_group`."""
        return _process.group


class GroupMember(metaclass=_Members):
    """torch's two constants: `WORLD`, the default group, and `NON_GROUP_MEMBER`.

    torch counterpart: `torch.distributed.GroupMember`.
    """

    NON_GROUP_MEMBER: Final = NonMember()


ProcessGroup = Group | NonMember | None
"""Type of `group=` arguments. None means the default group."""


class _Groups:
    """This process's groups, in one object so that tests can replace it."""

    group: Group | None = None
    subgroups: dict[str, Group]
    generation = 0

    def __init__(self) -> None:
        self.subgroups = {}


_process = _Groups()


def enter(rank: int, size: int, address: str, hosts: int, timeout: float) -> Group:
    _process.generation += 1
    everyone = tuple(range(size))
    _process.group = Group(rank, size, address, hosts, timeout, _process.generation, everyone)
    return _process.group


def leave() -> None:
    _process.group = None
    _process.subgroups.clear()


def register(group: Group) -> Group:
    return _process.subgroups.setdefault(group.name, group)


def forget(group: Group) -> None:
    del _process.subgroups[group.name]


def subgroup(name: str) -> Group | None:
    """Return a group by name ("" is the default group), or None if this process is not a member."""
    return _process.subgroups.get(name) if name else _process.group


def has_subgroups() -> bool:
    """Return whether this process is a member of a group other than the default one."""
    return bool(_process.subgroups)


def current() -> Group | None:
    return _process.group


def default_group() -> Group:
    if _process.group is None:
        raise GroupError(
            "Default process group has not been initialized, please make sure to call init_process_group."
        )
    return _process.group


def member(group: object, function: str) -> Group | None:
    """Resolve a `group=` argument; on a rank outside the group return None with torch's warning."""
    if isinstance(group, NonMember):
        global_rank = default_group().rank
        warn(f"Running {function} on global rank {global_rank} which does not belong to the given group.")
        return None
    return _resolved(group, function)


def registered(group: object, function: str) -> Group:
    if isinstance(group, Group) and group in (_process.group, _process.subgroups.get(group.name)):
        return group
    raise GroupError(
        f"{function}: group {group!r} is not registered, please create group with "
        "jaxpar.distributed.new_group."
    )


def _resolved(group: object, function: str) -> Group:
    default = default_group()
    return default if group is None else registered(group, function)


def rank() -> int:
    return _process.group.rank if _process.group else 0


def size() -> int:
    return _process.group.size if _process.group else 1


def ranks_text(ranks: list[int]) -> str:
    """Format ranks for errors: `rank 1`, `ranks 0, 2`, `no rank`."""
    if not ranks:
        return "no rank"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def is_initialized() -> bool:
    """Return whether the default process group is initialized.

    >>> import jaxpar.distributed as dist
    >>> dist.is_initialized()
    False

    torch counterpart: `torch.distributed.is_initialized`.
    """
    return _process.group is not None


def get_rank(group: ProcessGroup = None) -> int:
    """Return this process's rank in the group, -1 if it is not a member; raise GroupError without a group.

    torch counterpart: `torch.distributed.get_rank`.
    """
    default_group()
    return -1 if isinstance(group, NonMember) else _resolved(group, "get_rank").rank


def get_world_size(group: ProcessGroup = None) -> int:
    """Return the number of processes in the group, -1 if this process is not a member.

    Raises: GroupError, as `get_rank` (torch's ValueError).

    torch counterpart: `torch.distributed.get_world_size`.

    >>> import jaxpar.distributed as dist
    >>> dist.init_process_group()
    >>> dist.get_rank(), dist.get_world_size()
    (0, 1)
    >>> dist.destroy_process_group()
    """
    default_group()
    return -1 if isinstance(group, NonMember) else _resolved(group, "get_world_size").size


def get_process_group_ranks(group: ProcessGroup = None) -> list[int]:
    """Return the members' ranks in the default group, in group order.

    Raises:
      GroupError: no process group is initialized, or this rank is not a member.

    torch counterpart: `torch.distributed.get_process_group_ranks`.

    >>> import jaxpar.distributed as dist
    >>> dist.init_process_group()
    >>> dist.get_process_group_ranks()
    [0]
    >>> dist.destroy_process_group()
    """
    return list(_resolved(group, "get_process_group_ranks").ranks)


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """Convert a rank of the default group to a rank of `group`; raise GroupError for ranks outside.

    torch counterpart: `torch.distributed.get_group_rank`.
    """
    pg = _resolved(group, "get_group_rank")
    if global_rank not in pg.numbers:
        raise GroupError(f"Global rank {global_rank} is not part of group {list(pg.ranks)}.")
    return pg.numbers[global_rank]


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """Convert a rank of `group` to a rank of the default group; raise GroupError if there is no such rank.

    torch counterpart: `torch.distributed.get_global_rank`.
    """
    pg = _resolved(group, "get_global_rank")
    if not 0 <= group_rank < pg.size:
        raise GroupError(f"Group rank {group_rank} is not part of group {list(pg.ranks)}.")
    return pg.ranks[group_rank]


def root(
    group: Group,
    global_rank: int | None,
    group_rank: int | None,
    default: int | None,
    function: str,
    argument: str,
) -> int:
    """Return the group rank selected by `src` or `group_src` (or `dst` or `group_dst`)."""
    if group_rank is not None and global_rank is not None:
        raise GroupError(f"{function}: can't specify both {argument} and group_{argument}.")
    if group_rank is None and global_rank is None:
        global_rank = default
    if global_rank is None and group_rank is None:
        raise GroupError(f"{function}: must specify {argument} or group_{argument}.")
    if group_rank is not None:
        get_global_rank(group, group_rank)
        return group_rank
    if global_rank not in group.numbers:
        raise GroupError(
            f"{function}: {argument}={global_rank} is not a rank of this group, which has "
            f"{list(group.ranks)}."
        )
    return group.numbers[global_rank]


def __getattr__(name: str) -> Group | None:
    # A module attribute would be bound at import time, before there is a group.

    if name == "WORLD":
        return _process.group
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
