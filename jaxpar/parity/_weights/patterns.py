"""Patterns: `*` in a mapping is a word or a part of one, the same on both sides: {"h.*.c_fc": "h_*.fc"}."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .mapping import Concatenated, Entries, Place, Split

Key = str | tuple[str, ...]


def expanded(
    mapping: Entries, torch: Iterable[str] | None, flax: Iterable[str]
) -> Iterator[tuple[Key, Place]]:
    """The entries with words for every `*`, each once.

    Args:
      torch: torch's names and paths, in which the words are looked for; if they are not known, in Flax's.
      flax: Flax's paths.
    """
    # What is written out comes first, and a pattern does not replace it.
    written = {key for key in mapping if "*" not in str(key)}
    yield from ((key, place) for key, place in mapping.items() if key in written)
    for key, place in mapping.items():
        if key in written:
            continue
        pattern = (key if isinstance(key, str) else key[0]) if torch is not None else _first(place)
        found = list(dict.fromkeys(_matches(pattern, flax if torch is None else torch)))
        if not found:
            yield key, place  # for the error, which shows it as it was written
        for words in found:
            filled = _filled(key, words)
            if filled not in written:
                yield filled, _filled(place, words)


def _first(place: Place) -> str:
    """One Flax path of a place."""
    inner: Any = place
    while not isinstance(inner, str):
        if isinstance(inner, Split):
            inner = inner.places[0]
        elif isinstance(inner, Concatenated):
            inner = inner.place
        elif isinstance(inner, (tuple, list)):
            inner = inner[0]
        else:
            inner = inner.path
    return inner


def _matches(pattern: str, names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    found = re.compile("([^.]+)".join(map(re.escape, pattern.split("*"))))
    for name in names:
        match = found.match(name)
        if match and name[match.end() :][:1] in ("", "."):
            yield match.groups()


def _filled(value: Any, words: tuple[str, ...]) -> Any:
    """A key or a place with the words in the places of its `*`, in order."""
    if isinstance(value, str):
        left = iter(words)
        return re.sub(r"\*", lambda _: next(left, "*"), value)
    if isinstance(value, (tuple, list)):
        return tuple(_filled(each, words) for each in value)
    if isinstance(value, Split):
        return dataclasses.replace(value, places=_filled(value.places, words))
    if isinstance(value, Concatenated):
        return dataclasses.replace(value, place=_filled(value.place, words))
    return dataclasses.replace(value, path=_filled(value.path, words))


def shortened(entries: Mapping[str, Place], torch: Iterable[str]) -> dict[str, Place]:
    """Entries that are one but for the numbers in them as one pattern, where it means them and nothing else.

    Args:
      torch: torch's names and paths.
    """
    groups: dict[tuple[str, str], dict[str, Place]] = {}
    for key, place in entries.items():
        numbers = re.findall(r"\d+", key)
        same = numbers and re.findall(r"\d+", _first(place)) == numbers
        group = (re.sub(r"\d+", "*", key), repr(_starred(place))) if same else (key, repr(place))
        groups.setdefault(group, {})[key] = place
    names = list(torch)
    short: dict[str, Place] = {}
    for (pattern, _), alike in groups.items():
        place = _starred(next(iter(alike.values())))
        meant = len(alike) > 1 and dict(expanded({pattern: place}, names, ())) == alike
        short |= {pattern: place} if meant else alike
    return short


def _starred(place: Any) -> Any:
    """A path, or what holds one, with a `*` for every number."""
    if isinstance(place, str):
        return re.sub(r"\d+", "*", place)
    return dataclasses.replace(place, path=re.sub(r"\d+", "*", place.path))
