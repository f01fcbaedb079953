"""The argument `dims` of optimizers of matrices: where the axes that torch means lie in Flax's leaves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ....errors import PortError
from ..._weights import Links

Axes = tuple[int, int]
KEYS: dict[str, Callable[[str, int], Any]] = {
    "x.ndim": lambda path, ndim: ndim,
    'path.split("/")[-1]': lambda path, ndim: path.rpartition("/")[2],
}
"""What the axes may depend on, and how it is written."""


def dims_of(
    function: Callable[..., Any],
    taken: Iterable[str],
    tensors: Mapping[str, np.ndarray],
    links: Links,
    paths: Mapping[str, str],
) -> str:
    """A function of the path and the leaf as text; empty where the default is right.

    Args:
      taken: the paths of the leaves that the optimizer moves.
      tensors: torch's parameters.
      paths: of Flax's leaves, by their names in `links`.

    Raises:
      PortError: the axes depend on more than their number or the name of the leaf.
    """
    if "dims" not in inspect.signature(function).parameters:
        return ""
    ordered = function.__name__ == "muon"
    default: Axes = (1, 0) if ordered else (-2, -1)
    last, before = _varying(tensors, links, -1), _varying(tensors, links, -2)
    wanted = {
        (paths[leaf], ndim): (before[leaf][0], axis)
        for leaf, (axis, ndim) in last.items()
        if leaf in before and paths.get(leaf) in set(taken)
    }
    for said, key in KEYS.items():
        cases: dict[Any, set[Axes]] = {}
        for (path, ndim), axes in wanted.items():
            cases.setdefault(key(path, ndim), set()).add(
                default if _same(axes, default, ndim, ordered) else axes
            )
        if all(len(found) == 1 for found in cases.values()):
            return _written(said, {case: found.pop() for case, found in cases.items()}, default)
    raise PortError(
        f"jaxpar.parity.port: the axes that {function.__name__} takes lie differently in leaves of one name "
        "and number of axes; write the argument dims by hand."
    )


def _varying(tensors: Mapping[str, np.ndarray], links: Links, axis: int) -> dict[str, tuple[int, int]]:
    """For each leaf where one axis of its tensor lies in it, and how many axes it has."""
    counted = {}
    for name, x in tensors.items():
        if x.ndim >= 2:
            shape = [1] * x.ndim
            shape[axis] = x.shape[axis]
            counted[name] = np.broadcast_to(np.arange(float(x.shape[axis])).reshape(shape), x.shape)
    found = {}
    for leaf, x in links.to_flax(counted, gradient=True).items():
        moved = [i for i in range(x.ndim) if x.shape[i] > 1 and np.any(np.diff(x, axis=i))]
        if len(moved) == 1:
            found[leaf] = moved[0], x.ndim
    return found


def _same(axes: Axes, default: Axes, ndim: int, ordered: bool) -> bool:
    theirs = tuple(axis % ndim for axis in default)
    return axes == theirs if ordered else set(axes) == set(theirs)


def _written(said: str, cases: Mapping[Any, Axes], default: Axes) -> str:
    other = {case: axes for case, axes in cases.items() if axes != default}
    if not other:
        return ""
    if len(cases) == 1:
        return f"lambda path, x: {next(iter(other.values()))}"
    text = "".join(f"{axes} if {said} == {case!r} else " for case, axes in other.items())
    return f"lambda path, x: {text}{default}"
