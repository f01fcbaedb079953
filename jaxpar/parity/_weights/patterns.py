"""Patterns: a `*` in a mapping matches within one key of a path, equally on both sides."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .mapping import Concatenated, Entries, Split, Target

Key = str | tuple[str, ...]


def expanded(
    mapping: Entries, torch: Iterable[str] | None, flax: Iterable[str]
) -> Iterator[tuple[Key, Target]]:
    """With `torch` None, targets are matched with Flax's paths."""
    # Entries without a pattern come first and take precedence.
    written = {key for key in mapping if "*" not in str(key)}
    yield from ((key, target) for key, target in mapping.items() if key in written)
    for key, target in mapping.items():
        if key in written:
            continue
        pattern = (key if isinstance(key, str) else key[0]) if torch is not None else _first(target)
        matches = list(dict.fromkeys(_matches(pattern, flax if torch is None else torch)))
        if not matches:
            yield key, target  # unchanged, for the error message
        for fillings in matches:
            filled = _filled(key, fillings)
            if filled not in written:
                yield filled, _filled(target, fillings)


def _first(target: Target) -> str:
    inner: Any = target
    while not isinstance(inner, str):
        if isinstance(inner, Split):
            inner = inner.targets[0]
        elif isinstance(inner, Concatenated):
            inner = inner.target
        elif isinstance(inner, (tuple, list)):
            inner = inner[0]
        else:
            inner = inner.path
    return inner


def _matches(pattern: str, names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    # One key at most: a `*` across dots would match the same name in several ways.
    expression = re.compile("([^.]+)".join(map(re.escape, pattern.split("*"))))
    for name in names:
        match = expression.match(name)
        if match and name[match.end() :][:1] in ("", "."):
            yield match.groups()


def _filled(value: Any, fillings: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        remaining = iter(fillings)
        return re.sub(r"\*", lambda _: next(remaining, "*"), value)
    if isinstance(value, (tuple, list)):
        return tuple(_filled(child, fillings) for child in value)
    if isinstance(value, Split):
        return dataclasses.replace(value, targets=_filled(value.targets, fillings))
    if isinstance(value, Concatenated):
        return dataclasses.replace(value, target=_filled(value.target, fillings))
    return dataclasses.replace(value, path=_filled(value.path, fillings))


def shortened(entries: Mapping[str, Target], torch: Iterable[str]) -> dict[str, Target]:
    """Merge entries that differ only in numbers to one pattern, if it matches exactly these entries."""
    groups: dict[tuple[str, str], dict[str, Target]] = {}
    for key, target in entries.items():
        numbers = re.findall(r"\d+", key)
        same = numbers and re.findall(r"\d+", _first(target)) == numbers
        group = (re.sub(r"\d+", "*", key), repr(_starred(target))) if same else (key, repr(target))
        groups.setdefault(group, {})[key] = target
    names = list(torch)
    short: dict[str, Target] = {}
    for (pattern, _), alike in groups.items():
        target = _starred(next(iter(alike.values())))
        meant = len(alike) > 1 and dict(expanded({pattern: target}, names, ())) == alike
        short |= {pattern: target} if meant else alike
    return short


def _starred(target: Any) -> Any:
    if isinstance(target, str):
        return re.sub(r"\d+", "*", target)
    return dataclasses.replace(target, path=re.sub(r"\d+", "*", target.path))
