"""The group of which this process is a member: one value, or none.

Like torch, this keeps a default process group behind functions. Other modules ask `rank()` and `size()`,
which are 0 and 1 without a group, never raise, and start nothing.
"""

from __future__ import annotations

import dataclasses

from ..errors import GroupError


@dataclasses.dataclass(frozen=True)
class Group:
    """A member's view of the group. `generation` counts the groups of this process; `address` is that of rank
    0, "" in a world of one."""

    rank: int
    size: int
    address: str
    hosts: int
    timeout: float
    generation: int


class _Process:
    """The group of this process: one object, so that a test can have another."""

    group: Group | None = None
    generation = 0


_process = _Process()


def enter(rank: int, size: int, address: str, hosts: int, timeout: float) -> Group:
    _process.generation += 1
    _process.group = Group(rank, size, address, hosts, timeout, _process.generation)
    return _process.group


def leave() -> None:
    _process.group = None


def current() -> Group | None:
    return _process.group


def default_group() -> Group:
    """The group; raises torch's error if there is none."""
    if _process.group is None:
        raise GroupError(
            "Default process group has not been initialized, please make sure to call init_process_group."
        )
    return _process.group


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


def get_rank() -> int:
    """This process's number in the group, from 0.

    Raises:
      GroupError: there is no group (torch's ValueError).

    torch counterpart: `torch.distributed.get_rank`.
    """
    return default_group().rank


def get_world_size() -> int:
    """The number of processes in the group.

    Raises:
      GroupError: there is no group (torch's ValueError).

    torch counterpart: `torch.distributed.get_world_size`.
    """
    return default_group().size
