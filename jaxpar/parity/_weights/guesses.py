"""Guesses: a mapping to start from, of what is left over on both sides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .fusion import View
from .mapping import Entries, Mapping, Place, Plain
from .pairing import Pairing, pair
from .patterns import expanded, shortened
from .source import Source
from .suggest import Calls, Group, entries, groups
from .tree import Tree
from .turns import Turn, turns
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

    def turns(self, chosen: Iterable[Group] | None = None) -> list[Turn]:
        """Single arrays that are left over when the groups' layers are paired."""
        return turns(self._paired(entries(self.groups if chosen is None else chosen, self._pairing)[0]))

    def mapping(
        self,
        chosen: Iterable[Group] | None = None,
        notes: tuple[str, ...] = (),
        choices: Sequence[int] | None = None,
    ) -> Mapping:
        """With these groups, or as they were guessed first; and with a choice for each of their turns."""
        found, reasons = entries(self.groups if chosen is None else chosen, self._pairing)
        turned: dict[str, Place] = {}
        seen = self._seen
        known = turns(self._paired(found))
        for turn, choice in zip(known, choices or [0] * len(known), strict=True):
            short = shortened(turn.entries(choice), seen.source.tensors)
            turned |= short
            reasons |= dict.fromkeys(short, turn.reason(choice))
        # Once more with the guesses: what they leave over, and what does not fit, belongs into the result.
        plain = dict(expanded(turned, list(seen.source.tensors), ()))
        final = self._paired({**found, **plain})  # type: ignore[dict-item]
        left = [f"torch {name} {seen.source.shapes[name]}" for name in final.left_in_torch()]
        left += [f"flax  {leaf} {seen.tree.leaves[leaf].shape}" for leaf in final.left_in_flax()]
        unmatched = (*self._faults, *final.faults, *left)
        return Mapping({**self.known, **found, **turned}, reasons, unmatched, notes)

    def _paired(self, found: Plain) -> Pairing:
        seen = self._seen
        return pair(seen.tree, seen.source, {**found, **seen.entries}, self._no_flax)

    def bare(self, path: str) -> str:
        """A torch path without the words of wrappers."""
        return self._pairing.names.bare.get(path, path)
