"""The groups of which this process is a member: the default one, or none, and its subgroups.

Like torch, this keeps a default process group behind functions; `new_group` makes others, of some of its
ranks. Other modules ask `rank()` and `size()`, which are 0 and 1 without a group, never raise, and start
nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Final

from ..errors import GroupError


@dataclasses.dataclass(frozen=True)
class Group:
    """A member's view of a group.

    Attributes:
      rank, size: this process's number in it, and how many there are.
      address: of rank 0; "" in a world of one.
      generation: counts the default groups of this process.
      ranks: of the members, in the default group. name: a subgroup's own; "" is the default group.

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
        """This process's rank in the default group: the one that errors name."""
        return self.ranks[self.rank]

    @property
    def folder(self) -> str:
        """Where the group's texts are in the coordinator's store."""
        return f"{self.generation}/{self.name}" if self.name else str(self.generation)

    @functools.cached_property
    def numbers(self) -> dict[int, int]:
        """The rank in this group of every member's global rank."""
        return {rank: i for i, rank in enumerate(self.ranks)}

    def __str__(self) -> str:
        return f"of ranks {list(self.ranks)}" if self.name else "of all ranks"


class NonMember:
    """What `new_group` gives the ranks that are not in the group."""

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
"""What a `group=` may be: a group, what a rank outside of it has, or None for the default group."""


class _Process:
    """The group of this process: one object, so that a test can have another."""

    group: Group | None = None
    subgroups: dict[str, Group]
    generation = 0

    def __init__(self) -> None:
        self.subgroups = {}


_process = _Process()


def enter(rank: int, size: int, address: str, hosts: int, timeout: float) -> Group:
    _process.generation += 1
    everyone = tuple(range(size))
    _process.group = Group(rank, size, address, hosts, timeout, _process.generation, everyone)
    return _process.group


def leave() -> None:
    _process.group = None
    _process.subgroups.clear()


def register(group: Group) -> Group:
    """Makes a subgroup known, until `forget` or the end of the default group."""
    return _process.subgroups.setdefault(group.name, group)


def forget(group: Group) -> None:
    del _process.subgroups[group.name]


def subgroup(name: str) -> Group | None:
    """The group of that name, "" for the default one; None if this process is in no such group."""
    return _process.subgroups.get(name) if name else _process.group


def current() -> Group | None:
    return _process.group


def default_group() -> Group:
    """The group; raises torch's error if there is none."""
    if _process.group is None:
        raise GroupError(
            "Default process group has not been initialized, please make sure to call init_process_group."
        )
    return _process.group


def member(group: object, function: str) -> Group | None:
    """The group that `group=` means; None, with torch's warning, on a rank that is not in it.

    Raises:
      GroupError: it is no group, or one that was left; or there is no default group.
    """
    default = default_group()
    if group is None:
        return default
    if isinstance(group, NonMember):
        warnings.warn(
            f"Running {function} on global rank {default.rank} which does not belong to the given group.",
            stacklevel=3,
        )
        return None
    return registered(group, function)


def registered(group: object, function: str) -> Group:
    """Raises GroupError unless it is a group of this process that was not left."""
    if isinstance(group, Group) and group in (_process.group, _process.subgroups.get(group.name)):
        return group
    raise GroupError(
        f"{function}: group {group!r} is not registered, please create group with "
        "jaxpar.distributed.new_group."
    )


def rank() -> int:
    """This process's number; 0 without a group."""
    return _process.group.rank if _process.group else 0


def size() -> int:
    """The number of processes; 1 without a group."""
    return _process.group.size if _process.group else 1


def ranks_text(ranks: list[int]) -> str:
    """`rank 1`, `ranks 0, 2`, `no rank`."""
    if not ranks:
        return "no rank"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def is_initialized() -> bool:
    """Whether this process is a member of a group.

    torch counterpart: `torch.distributed.is_initialized`.
    """
    return _process.group is not None


def get_rank(group: ProcessGroup = None) -> int:
    """This process's number in the group, from 0; -1 if it is no member.

    Raises:
      GroupError: there is no group (torch's ValueError).

    torch counterpart: `torch.distributed.get_rank`.
    """
    default = default_group()
    if isinstance(group, NonMember):
        return -1
    return default.rank if group is None else registered(group, "get_rank").rank


def get_world_size(group: ProcessGroup = None) -> int:
    """The number of processes in the group; -1 if this one is no member.

    Raises:
      GroupError: there is no group (torch's ValueError).

    torch counterpart: `torch.distributed.get_world_size`.
    """
    default = default_group()
    if isinstance(group, NonMember):
        return -1
    return default.size if group is None else registered(group, "get_world_size").size


def get_process_group_ranks(group: ProcessGroup = None) -> list[int]:
    """The members' ranks in the default group, in the order of the group.

    Raises:
      GroupError: there is no group, or this rank is not in it.

    torch counterpart: `torch.distributed.get_process_group_ranks`.
    """
    default = default_group()
    return list((default if group is None else registered(group, "get_process_group_ranks")).ranks)


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """The rank in `group` of a rank of the default group.

    Raises:
      GroupError: it is not in the group.

    torch counterpart: `torch.distributed.get_group_rank`.
    """
    default = default_group()
    pg = default if group is None else registered(group, "get_group_rank")
    if global_rank not in pg.numbers:
        raise GroupError(f"Global rank {global_rank} is not part of group {list(pg.ranks)}.")
    return pg.numbers[global_rank]


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """The rank in the default group of a rank of `group`.

    Raises:
      GroupError: the group has no such rank.

    torch counterpart: `torch.distributed.get_global_rank`.
    """
    default = default_group()
    pg = default if group is None else registered(group, "get_global_rank")
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
    """The rank in the group that `src` or `dst`, or `group_src` or `group_dst`, means.

    Raises:
      GroupError: both are given, or none where there is no default; or it is not in the group.
    """
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
    """`dist.group.WORLD`, as in torch."""
    if name == "WORLD":
        return _process.group
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
