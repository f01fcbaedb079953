"""Order: torch's axes of an image, where they are in [N, H, W, C], and how that is written."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .flow import AXES

Part = str | ast.AST
LAST = {0: 0, 1: -1, 2: 1, 3: 2}
"""Where torch's axes are in [N, H, W, C]."""
ORDER = (0, 2, 3, 1)
"""torch's axes in the order of [N, H, W, C]."""


def axes_of(node: ast.expr) -> list[int] | None:
    """The axes that an expression says, from 0 to 3; None if it does not say them."""
    try:
        said = ast.literal_eval(node)
    except ValueError:
        return None
    found = list(said) if isinstance(said, tuple | list) else [said]
    valid = all(type(each) is int and -AXES <= each < AXES for each in found)
    return [each % AXES for each in found] if valid else None


def written(node: ast.AST, axes: Sequence[int]) -> str:
    """Axes in the form of what they stand for."""
    inside = ", ".join(map(str, axes))
    if isinstance(node, ast.Tuple):
        return f"({inside}{',' * (len(axes) == 1)})"
    return f"[{inside}]" if isinstance(node, ast.List) else inside


def same_order(kept: set[int]) -> bool:
    """Whether these axes come in the order of torch's where the channels are last."""
    return len(kept) == AXES or [axis for axis in ORDER if axis in kept] == sorted(kept)


def slice_of(node: ast.Slice) -> str | None:
    """A slice of a shape, if its axes are neighbours in both orders."""
    try:
        bounds = [ast.literal_eval(each) if each else None for each in (node.lower, node.upper, node.step)]
        chosen = [LAST[axis] % AXES for axis in range(AXES)[slice(*bounds)]]
    except (ValueError, TypeError):
        return None
    if not chosen or chosen != list(range(chosen[0], chosen[0] + len(chosen))):
        return None
    return f"{chosen[0] or ''}:{chosen[-1] + 1}"


def four(target: ast.Tuple) -> list[Part] | None:
    """Names for four axes; `*_` stands for those that are missing."""
    names: list[Part] = []
    for each in target.elts:
        if isinstance(each, ast.Starred):
            if not (isinstance(each.value, ast.Name) and each.value.id == "_"):
                return None
            names += ["_"] * (AXES - len(target.elts) + 1)
        else:
            names.append(each)
    return names if len(names) == AXES else None


def ordered(parts: Sequence[ast.expr | None]) -> list[Part]:
    """`..., :c`: the parts of a subscript, without whole axes at its end or beginning."""
    first = next((i for i, each in enumerate(parts) if each is not None), AXES)
    if first > 1 and first < AXES:
        found: list[Part] = ["..."]
        rest = parts[first:]
    else:
        found, rest = [], list(parts)
        while rest and rest[-1] is None:
            rest.pop()
    for each in rest:
        found += [", "] * bool(found) + [each if each is not None else ":"]
    return found or [":"]


def parts_of(node: ast.AST) -> Iterator[ast.AST]:
    """An expression; of a list or tuple that is written there, its elements."""
    if isinstance(node, ast.List | ast.Tuple):
        for each in node.elts:
            yield from parts_of(each.value if isinstance(each, ast.Starred) else each)
    else:
        yield node
