"""Guesses: a mapping to start from, of what is left over on both sides."""

from __future__ import annotations

from collections.abc import Iterable

from .fusion import View
from .mapping import Entries, Mapping
from .pairing import pair
from .source import Source
from .suggest import Calls, Group, entries, groups
from .tree import Tree
from .unmatched import ignored


class Guesses:
    """What can be guessed of two models, beyond what is known.

    Attributes:
      groups: layers of one kind and shape, as they are paired by names and order.
    """

    def __init__(
        self,
        here: Tree,
        there: Source,
        known: Entries | None = None,
        ignore_torch: Iterable[str] = (),
        ignore_flax: Iterable[str] = (),
        calls: Calls | None = None,
    ):
        self.known = dict(known or {})
        no_torch, unknown_t = ignored(there.tensors, ignore_torch, "ignore_torch")
        no_flax, unknown_f = ignored(here.leaves, ignore_flax, "ignore_flax")
        self._seen = View(here, there.without(no_torch), self.known)
        self._faults = (*unknown_t, *unknown_f, *self._seen.faults)
        self._no_flax = self._seen.seen_leaves(no_flax)
        self._pairing = pair(self._seen.tree, self._seen.source, self._seen.entries, self._no_flax)
        left = self._pairing.left_in_torch(), self._pairing.left_in_flax()
        self.groups = groups(self._pairing, *left, calls)

    def mapping(self, chosen: Iterable[Group] | None = None, notes: tuple[str, ...] = ()) -> Mapping:
        """With these groups, or as they were guessed first."""
        found, reasons = entries(self.groups if chosen is None else chosen, self._pairing)
        seen = self._seen
        # Once more with the guesses: what they leave over, and what does not fit, belongs into the result.
        final = pair(seen.tree, seen.source, {**found, **seen.entries}, self._no_flax)
        left = [f"torch {name} {seen.source.shapes[name]}" for name in final.left_in_torch()]
        left += [f"flax  {leaf} {seen.tree.leaves[leaf].shape}" for leaf in final.left_in_flax()]
        unmatched = (*self._faults, *final.faults, *left)
        return Mapping({**self.known, **found}, reasons, unmatched, notes)

    def bare(self, path: str) -> str:
        """A torch path without the words of wrappers."""
        return self._pairing.names.bare.get(path, path)
