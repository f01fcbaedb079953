"""Collectives of Python objects, over the host: configurations, metrics, names, small arrays.

They fill the lists passed to them, as torch's do, and return them. torch pickles the objects, so any sender
can run code on the receivers; here that takes `allow_pickle=True` on all ranks.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import GroupError, LeafError
from . import tagged_json
from ._text_transfer import Problem, transfer
from .group import Group, ProcessGroup, member, root
from .tagged_json import Json, Nested, encode_array

DEEPEST = 200
"""Maximum nesting depth. It also ends the recursion of a list that contains itself."""


def all_gather_object(
    object_list: list[Any] | None, obj: Any, group: ProcessGroup = None, *, allow_pickle: bool = False
) -> list[Any] | None:
    """Return every rank's `obj`, in rank order, on every rank.

    Args:
      object_list: a list whose first W entries are replaced; None creates one.
      obj: None, booleans, numbers, strings, bytes; lists, tuples, dicts and sets of these; NumPy and JAX
        arrays. JAX arrays arrive on the first device of the process.
      group: the participating ranks, see `new_group`.
      allow_pickle: whether objects of different types are pickled. Unpickling runs code that the sending
        rank chooses. Equal on all ranks.

    Returns:
      `object_list`. A rank outside the group gets None and a warning.

    Raises:
      GroupError: no process group is initialized, or a list is too short. LeafError: on any rank, an object
        needs pickle or has more than 64 MiB of text. DivergenceError: ranks make different calls.
        DistributedError: ranks did not arrive.

    torch counterpart: `torch.distributed.all_gather_object`.

    >>> import jaxpar.distributed as dist
    >>> dist.init_process_group()
    >>> dist.all_gather_object(None, {"loss": 0.5})
    [{'loss': 0.5}]
    >>> dist.destroy_process_group()
    """
    if (pg := member(group, "all_gather_object")) is None:
        return None
    problem = _short(object_list, pg.size, "object_list")
    texts, problem = _texts([obj], ["obj"], allow_pickle, problem)
    gathered = transfer(pg, _call("all_gather_object", allow_pickle), texts, range(pg.size), 0, problem)
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
    """Return every rank's `obj`, in rank order, on rank `dst`; the others get None.

    Args:
      obj, group, allow_pickle: as in `all_gather_object`.
      object_gather_list: on `dst` a list whose first W entries are replaced; None on the others.
      dst, group_dst: the receiving rank, as in `gather`.

    Raises: as `all_gather_object`; GroupError if `dst` passes no list or a different rank passes one.

    torch counterpart: `torch.distributed.gather_object`.
    """
    if (pg := member(group, "gather_object")) is None:
        return None
    root_rank = root(pg, dst, group_dst, 0, "gather_object", "dst")
    is_dst = pg.rank == root_rank
    problem = _where(object_gather_list, pg.size, is_dst)
    texts, problem = _texts([obj], ["obj"], allow_pickle, problem)
    call = _call("gather_object", allow_pickle, dst=pg.ranks[root_rank])
    gathered = transfer(pg, call, texts, range(pg.size) if is_dst else (), 0, problem)
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
    """Copy rank `src`'s objects to every rank.

    Args:
      object_list: a list of equal length on all ranks; its entries are replaced on all ranks but `src`.
      src, group_src: the sending rank, as in `broadcast`.
      device: ignored; exists for torch's signature.
      group, allow_pickle: as in `all_gather_object`.

    Returns and Raises: as `all_gather_object`.

    torch counterpart: `torch.distributed.broadcast_object_list`.

    >>> import jaxpar.distributed as dist
    >>> dist.init_process_group()
    >>> dist.broadcast_object_list(["run 7", (1, 2)], src=0)
    ['run 7', (1, 2)]
    >>> dist.destroy_process_group()
    """
    del device
    if (pg := member(group, "broadcast_object_list")) is None:
        return None
    root_rank = root(pg, src, group_src, 0, "broadcast_object_list", "src")
    is_src = pg.rank == root_rank
    texts, problem = _texts([object_list], ["object_list"], allow_pickle) if is_src else ([], None)
    call = _call("broadcast_object_list", allow_pickle, src=pg.ranks[root_rank], objects=len(object_list))
    (text,) = transfer(pg, call, texts, [root_rank], 0, problem)
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
    """Send object r of rank `src`'s list to rank r, and return it there.

    Args:
      scatter_object_output_list: its first entry is replaced.
      scatter_object_input_list: on `src` one object per rank of the group; ignored on the others.
      src, group_src, group, allow_pickle: as in `broadcast_object_list`.

    Raises: as `all_gather_object`; GroupError if the output list is empty.

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
    (text,) = transfer(pg, call, texts, [root_rank], pg.rank, problem)
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
    problem = _short(objects, group.size, "scatter_object_input_list", exact=True)
    names = [f"scatter_object_input_list[{i}]" for i in range(len(objects))]
    return _texts(objects, names, allow_pickle, problem)


def _texts(
    objects: Sequence[Any], names: Sequence[str], allow_pickle: bool, problem: Problem = None
) -> tuple[list[str], Problem]:
    """Return the objects' texts, or no texts and the error."""
    # The error is returned, not raised: `transfer` sends it to all ranks, which would otherwise wait.
    if problem:
        return [], problem
    try:
        return [to_text(obj, name, allow_pickle) for obj, name in zip(objects, names, strict=True)], None
    except LeafError as error:
        return [], error


def _short(object_list: list[Any] | None, size: int, name: str, exact: bool = False) -> Problem:
    # As in torch, a longer list keeps its remaining entries, so one list may serve groups of all sizes.
    if object_list is None or len(object_list) == size or (len(object_list) > size and not exact):
        return None
    return GroupError(f"{name} has {len(object_list)} entries for {size} ranks; it needs one for each.")


def _call(function: str, allow_pickle: bool, **same: int) -> str:
    options = [f"{name}={value}" for name, value in same.items()]
    return f"{function}({', '.join([*options, *(['allow_pickle=True'] if allow_pickle else [])])})"


def _fill(object_list: list[Any] | None, texts: list[str], allow_pickle: bool) -> list[Any]:
    objects = [from_text(text, allow_pickle) for text in texts]
    if object_list is None:
        return objects
    object_list[: len(objects)] = objects
    return object_list


# ------------------------------------------------------------------------------------------- texts


def to_text(obj: object, name: str, allow_pickle: bool) -> str:
    """Serialize an object as tagged JSON, or raise LeafError, which names it `name`."""
    try:
        encoded = tagged_json.encode(obj, name, partial(_encode_other, allow_pickle), levels=DEEPEST)
        return json.dumps(encoded, separators=(",", ":"))
    except LeafError:
        raise
    except tagged_json.NestedTooDeepError as error:
        raise LeafError(
            f"{error}: more than {DEEPEST} levels of lists, tuples and dicts, or one inside itself."
        ) from None
    except Exception as error:  # a pickle runs the object's own code, and ints of 4300 digits have no text
        raise LeafError(f"{name} cannot be sent: {type(error).__name__}: {error}") from error


def from_text(text: str, allow_pickle: bool) -> Any:
    """Deserialize an object. Never runs code from the text, unless `allow_pickle`."""

    def unpickle(data: str) -> Any:
        if not allow_pickle:
            raise LeafError("a pickle came from a rank that had not said so; nothing was loaded from it.")
        return pickle.loads(base64.b64decode(data))

    rules: dict[str, Callable[[Any], Any]] = {
        "set": lambda parts: {tagged_json.decode(part, rules) for part in parts},
        "frozenset": lambda parts: frozenset(tagged_json.decode(part, rules) for part in parts),
        "complex": lambda parts: complex(*parts),
        "Array": lambda data: jnp.asarray(tagged_json.decode_array(data)),
        "pickle": unpickle,
    }
    return tagged_json.decode(json.loads(text), rules)


def _encode_other(allow_pickle: bool, x: Any, name: str, nested: Nested) -> Json:
    kind = type(x)
    if kind in (set, frozenset):
        return {kind.__name__: [nested(part, f"{name}[{i}]") for i, part in enumerate(x)]}
    if kind is complex:
        return {"complex": [x.real, x.imag]}
    if isinstance(x, jax.Array):
        if not x.is_fully_addressable:
            raise LeafError(f"{name} lies on devices of other processes too; send this process's part of it.")
        if x.is_deleted():
            raise LeafError(f"{name} was donated or deleted.")
        return tagged_json.encode_key(x) if tagged_json.is_key(x) else {"Array": encode_array(x)}
    if kind is np.ndarray and not _needs_pickle(x.dtype):
        return {"array": encode_array(x)}
    if isinstance(x, np.generic) and not _needs_pickle(x.dtype):
        return {"scalar": encode_array(x)}
    if allow_pickle:
        return {"pickle": tagged_json.base64_text(pickle.dumps(x))}
    raise LeafError(
        f"{name} is a {kind.__module__}.{kind.__qualname__}, which only pickle can send. Send numbers, "
        "texts, lists, tuples, dicts, sets and arrays; or pass allow_pickle=True on all ranks, if you trust "
        "whoever can reach rank 0's port."
    )


def _needs_pickle(dtype: np.dtype) -> bool:
    """Whether the dtype's name does not describe it fully: objects and structured dtypes."""
    return dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None
