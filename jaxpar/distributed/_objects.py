"""Collectives of Python objects, over the host: configurations, metrics, names, small arrays.

The four words fill the lists that they are given, as torch's do, and return what they filled. torch pickles
the objects, so whoever can send one can run anything on the others. Here objects go as data (`_object_text`),
and what only pickle can send is refused, unless all ranks say `allow_pickle=True`.

No device takes part, and the objects pass through the memory of rank 0's process: large arrays belong into
`all_gather` and the other collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import GroupError, LeafError
from ._object_text import from_text, to_text
from ._text_transfer import Problem, post
from .group import Group, ProcessGroup, member, root


def all_gather_object(
    object_list: list[Any] | None, obj: Any, group: ProcessGroup = None, *, allow_pickle: bool = False
) -> list[Any] | None:
    """Every rank's `obj`, in rank order, on every rank.

    Args:
      object_list: a list whose first W entries are replaced; None makes one.
      obj: None, booleans, numbers, texts, bytes; lists, tuples, dicts and sets of these; NumPy and JAX
        arrays. A JAX array comes back on the first device of the process.
      group: whose ranks take part, see `new_group`.
      allow_pickle: whether other objects are pickled, and run whatever code a rank has put into them. The
        same on all ranks.

    Returns:
      `object_list`; None, with a warning, on a rank outside of the group.

    Raises:
      GroupError: there is no group; a list that is too short. LeafError: an object, of this rank or of
        another, that only pickle can send, or more than 64 MiB of text. DivergenceError: ranks call
        something else. DistributedError: ranks did not come.

    torch counterpart: `torch.distributed.all_gather_object`.
    """
    if (pg := member(group, "all_gather_object")) is None:
        return None
    problem = _short(object_list, pg.size, "object_list")
    texts, problem = _texts([obj], ["obj"], allow_pickle, problem)
    gathered = post(pg, _call("all_gather_object", allow_pickle), texts, range(pg.size), 0, problem)
    return _fill(object_list, gathered, allow_pickle)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: ProcessGroup = None,
    group_dst: int | None = None,
    *,
    allow_pickle: bool = False,
) -> list[Any] | None:
    """Every rank's `obj`, in rank order, on rank `dst`; None on the others.

    Args:
      obj, group, allow_pickle: as in `all_gather_object`.
      object_gather_list: on `dst` a list whose first W entries are replaced; None on the others.
      dst: which rank, of the default group. group_dst: the same as a rank of `group`. 0 if both are left out.

    Raises: as `all_gather_object`; GroupError for a list on another rank, or none on `dst`.

    torch counterpart: `torch.distributed.gather_object`.
    """
    if (pg := member(group, "gather_object")) is None:
        return None
    root_rank = root(pg, dst, group_dst, 0, "gather_object", "dst")
    is_dst = pg.rank == root_rank
    problem = _where(object_gather_list, pg.size, is_dst)
    texts, problem = _texts([obj], ["obj"], allow_pickle, problem)
    call = _call("gather_object", allow_pickle, dst=pg.ranks[root_rank])
    gathered = post(pg, call, texts, range(pg.size) if is_dst else (), 0, problem)
    return _fill(object_gather_list, gathered, allow_pickle) if is_dst else None


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: ProcessGroup = None,
    device: object = None,
    group_src: int | None = None,
    *,
    allow_pickle: bool = False,
) -> list[Any] | None:
    """Rank `src`'s objects on every rank.

    Args:
      object_list: of the same length on all ranks; on all but `src` its entries are replaced.
      src: which rank, of the default group. group_src: the same as a rank of `group`. 0 if both are left out.
      device: taken and not used.
      group, allow_pickle: as in `all_gather_object`.

    Returns:
      `object_list`; None, with a warning, on a rank outside of the group.

    Raises: as `all_gather_object`.

    torch counterpart: `torch.distributed.broadcast_object_list`.
    """
    del device
    if (pg := member(group, "broadcast_object_list")) is None:
        return None
    root_rank = root(pg, src, group_src, 0, "broadcast_object_list", "src")
    is_src = pg.rank == root_rank
    texts, problem = _texts([object_list], ["object_list"], allow_pickle) if is_src else ([], None)
    call = _call("broadcast_object_list", allow_pickle, src=pg.ranks[root_rank], objects=len(object_list))
    (text,) = post(pg, call, texts, [root_rank], 0, problem)
    if not is_src:
        object_list[:] = from_text(text, allow_pickle)
    return object_list


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: ProcessGroup = None,
    group_src: int | None = None,
    *,
    allow_pickle: bool = False,
) -> Any:
    """Object r of rank `src`'s list on rank r.

    Args:
      scatter_object_output_list: its first entry is replaced.
      scatter_object_input_list: on `src` one object for each rank of the group; not used on the others.
      src, group_src: as in `broadcast_object_list`. group, allow_pickle: as in `all_gather_object`.

    Returns:
      The object; None, with a warning, on a rank outside of the group.

    Raises: as `all_gather_object`; GroupError for an output list without an entry.

    torch counterpart: `torch.distributed.scatter_object_list`, which returns None.
    """
    if (pg := member(group, "scatter_object_list")) is None:
        return None
    root_rank = root(pg, src, group_src, 0, "scatter_object_list", "src")
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise GroupError("Expected argument scatter_object_output_list to be a list of size at least 1.")
    texts: list[str] = []
    problem: Problem = None
    if pg.rank == root_rank:
        texts, problem = _to_scatter(pg, scatter_object_input_list, allow_pickle)
    call = _call("scatter_object_list", allow_pickle, src=pg.ranks[root_rank])
    (text,) = post(pg, call, texts, [root_rank], pg.rank, problem)
    scatter_object_output_list[0] = from_text(text, allow_pickle)
    return scatter_object_output_list[0]


def _where(object_gather_list: list[Any] | None, size: int, is_dst: bool) -> Problem:
    if bool(object_gather_list) is not is_dst:
        on = "be specified on destination rank" if is_dst else "NOT be specified on non-destination ranks"
        return GroupError(f"Argument ``gather_list`` must {on}.")
    return _short(object_gather_list, size, "object_gather_list")


def _to_scatter(group: Group, objects: list[Any] | None, allow_pickle: bool) -> tuple[list[str], Problem]:
    if objects is None:
        return [], GroupError("source rank must provide non-None scatter_object_input_list")
    problem = None
    if len(objects) != group.size:
        problem = _entries("scatter_object_input_list", len(objects), group.size)
    names = [f"scatter_object_input_list[{i}]" for i in range(len(objects))]
    return _texts(objects, names, allow_pickle, problem)


def _texts(
    objects: Sequence[Any], names: Sequence[str], allow_pickle: bool, problem: Problem = None
) -> tuple[list[str], Problem]:
    """The objects' texts, or why there are none: all ranks raise that, so that none waits for this one."""
    if problem:
        return [], problem
    try:
        return [to_text(obj, name, allow_pickle) for obj, name in zip(objects, names, strict=True)], None
    except LeafError as error:
        return [], error


def _short(object_list: list[Any] | None, size: int, name: str) -> Problem:
    """A longer one keeps the rest, as in torch: one list may serve groups of all sizes."""
    return None if object_list is None or len(object_list) >= size else _entries(name, len(object_list), size)


def _entries(name: str, have: int, size: int) -> GroupError:
    return GroupError(f"{name} has {have} entries for {size} ranks; it needs one for each.")


def _call(function: str, allow_pickle: bool, **same: int) -> str:
    options = [f"{name}={value}" for name, value in same.items()]
    return f"{function}({', '.join([*options, *(['allow_pickle=True'] if allow_pickle else [])])})"


def _fill(object_list: list[Any] | None, texts: list[str], allow_pickle: bool) -> list[Any]:
    objects = [from_text(text, allow_pickle) for text in texts]
    if object_list is None:
        return objects
    object_list[: len(objects)] = objects
    return object_list
