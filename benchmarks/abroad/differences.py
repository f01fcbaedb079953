"""Differences between the two sides of other people's models: found by a comparison, explained and confirmed by hand."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Difference:
    """Attributes:
    title: a heading.
    pairs: names of the pairs that have it.
    text: what either side does, what it changes, and how it was confirmed.
    """

    title: str
    pairs: tuple[str, ...]
    text: str


DIFFERENCES: tuple[Difference, ...] = ()
