"""ignoring: the names that `ignore_torch` and `ignore_flax` leave out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from .tree import inside, prefixes


def ignored(names: Iterable[str], patterns: Iterable[str], option: str) -> tuple[set[str], list[str]]:
    """Return the names that equal the patterns or are nested under them, and faults of the patterns."""
    if isinstance(patterns, str):
        return set(), [f"{option} is a list of names; write [{patterns!r}]"]
    matched: set[str] = set()
    faults = []
    for pattern in patterns:
        hit = {name for name in names if inside(name, pattern) is not None and pattern}
        if not hit:
            near = like(pattern, {path for name in names for path in prefixes(name)})
            faults.append(f"{option}: there is no {pattern!r}{near}")
        matched |= hit
    return matched, faults


def like(name: str, candidates: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, [n for n in candidates if n], 2, 0.6)
    return f"; near are {', '.join(near)}" if near else ""
