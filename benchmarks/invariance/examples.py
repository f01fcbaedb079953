"""Examples, the worlds in which they run, and the verdict that is expected: the same, or a cause."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """A script; `named` is in the cause of every difference, and empty where there must be none."""

    name: str
    script: str
    options: tuple[str, ...]
    named: str = ""
    arguments: tuple[str, ...] = ()


EXAMPLES: list[Example] = []
