"""The argument `dims` of optimizers of matrices: the positions of torch's matrix axes in Flax's leaves."""

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
"""The expressions that the axes may depend on."""


def dims_of(
    function: Callable[..., Any],
    moved_paths: Iterable[str],
    tensors: Mapping[str, np.ndarray],
    links: Links,
    paths: Mapping[str, str],
) -> str:
    """Write `dims` as a function of the path and the leaf; empty where the default is right.

    `moved_paths` are the leaves that the optimizer moves, `paths` all leaves by their names in `links`.
    """
    if "dims" not in inspect.signature(function).parameters:
        return ""
    ordered = function.__name__ == "muon"
    default: Axes = (1, 0) if ordered else (-2, -1)
    # Measured with numbered tensors, which covers every conversion of the rulebook, fused ones included.
    last, before = _varying(tensors, links, -1), _varying(tensors, links, -2)
    axes_by_leaf = {
        (paths[leaf], ndim): (before[leaf][0], axis)
        for leaf, (axis, ndim) in last.items()
        if leaf in before and paths.get(leaf) in set(moved_paths)
    }
    # The number of axes comes first: it distinguishes matrices from convolutions without naming leaves.
    for expression, key in KEYS.items():
        cases: dict[Any, set[Axes]] = {}
        for (path, ndim), axes in axes_by_leaf.items():
            written_axes = default if _same(axes, default, ndim, ordered) else axes
            cases.setdefault(key(path, ndim), set()).add(written_axes)
        if all(len(axes_set) == 1 for axes_set in cases.values()):
            return _written(expression, {case: axes_set.pop() for case, axes_set in cases.items()}, default)
    raise PortError(
        f"jaxpar.parity.port: the axes that {function.__name__} takes lie differently in leaves of one name "
        "and number of axes; write the argument dims by hand."
    )


def _varying(tensors: Mapping[str, np.ndarray], links: Links, axis: int) -> dict[str, tuple[int, int]]:
    counted = {}
    for name, x in tensors.items():
        if x.ndim >= 2:
            shape = [1] * x.ndim
            shape[axis] = x.shape[axis]
            counted[name] = np.broadcast_to(np.arange(float(x.shape[axis])).reshape(shape), x.shape)
    positions = {}
    for leaf, x in links.to_flax(counted, gradient=True).items():
        # A leaf that merges or splits the axis varies along several or none; it has no position then.
        moved = [i for i in range(x.ndim) if x.shape[i] > 1 and np.any(np.diff(x, axis=i))]
        if len(moved) == 1:
            positions[leaf] = moved[0], x.ndim
    return positions


def _same(axes: Axes, default: Axes, ndim: int, ordered: bool) -> bool:
    normalized = tuple(axis % ndim for axis in default)
    return axes == normalized if ordered else set(axes) == set(normalized)


def _written(expression: str, cases: Mapping[Any, Axes], default: Axes) -> str:
    other = {case: axes for case, axes in cases.items() if axes != default}
    if not other:
        return ""
    if len(cases) == 1:
        return f"lambda path, x: {next(iter(other.values()))}"
    text = "".join(f"{axes} if {expression} == {case!r} else " for case, axes in other.items())
    return f"lambda path, x: {text}{default}"
