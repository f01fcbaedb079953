"""Order: the positions of torch's image axes in [N, H, W, C], and how they are written."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .flow import AXES

Part = str | ast.AST
LAST = {0: 0, 1: -1, 2: 1, 3: 2}  # The positions of torch's axes in [N, H, W, C]
ORDER = (0, 2, 3, 1)  # torch's axes in the order of [N, H, W, C]


def axes_of(node: ast.expr) -> list[int] | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    axes = list(value) if isinstance(value, tuple | list) else [value]
    # `type` rather than isinstance, because True is an int.
    valid = all(type(axis) is int and -AXES <= axis < AXES for axis in axes)
    return [axis % AXES for axis in axes] if valid else None


def written(node: ast.AST, axes: Sequence[int]) -> str:
    numbers = ", ".join(map(str, axes))
    if isinstance(node, ast.Tuple):
        return f"({numbers}{',' * (len(axes) == 1)})"
    return f"[{numbers}]" if isinstance(node, ast.List) else numbers


def same_order(axes: set[int]) -> bool:
    return len(axes) == AXES or [axis for axis in ORDER if axis in axes] == sorted(axes)


def slice_of(node: ast.Slice) -> str | None:
    try:
        bounds = [ast.literal_eval(bound) if bound else None for bound in (node.lower, node.upper, node.step)]
        chosen = [LAST[axis] % AXES for axis in range(AXES)[slice(*bounds)]]
    except (ValueError, TypeError):
        return None
    if not chosen or chosen != list(range(chosen[0], chosen[0] + len(chosen))):
        return None
    return f"{chosen[0] or ''}:{chosen[-1] + 1}"


def four_names(target: ast.Tuple) -> list[Part] | None:
    names: list[Part] = []
    for element in target.elts:
        if isinstance(element, ast.Starred):
            if not (isinstance(element.value, ast.Name) and element.value.id == "_"):
                return None
            names += ["_"] * (AXES - len(target.elts) + 1)
        else:
            names.append(element)
    return names if len(names) == AXES else None


def ordered(parts: Sequence[ast.expr | None]) -> list[Part]:
    """Write a subscript as `..., :c`, without whole axes at its end or beginning."""
    first = next((i for i, index in enumerate(parts) if index is not None), AXES)
    if first > 1 and first < AXES:
        parts_: list[Part] = ["..."]
        remaining = parts[first:]
    else:
        parts_, remaining = [], list(parts)
        while remaining and remaining[-1] is None:
            remaining.pop()
    for index in remaining:
        parts_ += [", "] * bool(parts_) + [index if index is not None else ":"]
    return parts_ or [":"]


def parts_of(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.List | ast.Tuple):
        for element in node.elts:
            yield from parts_of(element.value if isinstance(element, ast.Starred) else element)
    else:
        yield node
