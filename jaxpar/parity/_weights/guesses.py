"""Guess a mapping for the tensors and leaves that remain unpaired."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .fusion import PairingView
from .mapping import Entries, Mapping, Plain, Target
from .pairing import Pairing, pair
from .source import WeightSource
from .suggest import Calls, LayerGroup, Turn, entries, groups, turns
from .tree import Tree
from .unmatched import ignored
from .unstacked import expanded, shortened


class Guesses:
    """Guesses for two models, in addition to a fixed mapping; `groups` are unpaired layers."""

    def __init__(
        self,
        tree: Tree,
        source: WeightSource,
        fixed: Entries | None = None,
        ignore_torch: Iterable[str] = (),
        ignore_flax: Iterable[str] = (),
        calls: Calls | None = None,
    ):
        self.fixed = dict(fixed or {})
        no_torch, unknown_t = ignored(source.tensors, ignore_torch, "ignore_torch")
        no_flax, unknown_f = ignored(tree.leaves, ignore_flax, "ignore_flax")
        self._view = PairingView(tree, source.without(no_torch), self.fixed)
        self._faults = (*unknown_t, *unknown_f, *self._view.faults)
        self._no_flax = self._view.paired_leaves(no_flax)
        self._pairing = pair(self._view.tree, self._view.source, self._view.entries, self._no_flax)
        leftovers = self._pairing.left_in_torch(), self._pairing.left_in_flax()
        self.groups = groups(self._pairing, *leftovers, calls)

    def turns(self, chosen: Iterable[LayerGroup] | None = None) -> list[Turn]:
        return turns(self._paired(entries(self.groups if chosen is None else chosen, self._pairing)[0]))

    def mapping(
        self,
        chosen: Iterable[LayerGroup] | None = None,
        notes: tuple[str, ...] = (),
        choices: Sequence[int] | None = None,
    ) -> Mapping:
        guessed, reasons = entries(self.groups if chosen is None else chosen, self._pairing)
        turned: dict[str, Target] = {}
        view = self._view
        leftover_turns = turns(self._paired(guessed))
        for turn, choice in zip(leftover_turns, choices or [0] * len(leftover_turns), strict=True):
            short = shortened(turn.entries(choice), view.source.tensors)
            turned |= short
            reasons |= dict.fromkeys(short, turn.reason(choice))
        # Pair again with the guesses: the mapping reports the leftovers and misfits of this final pairing.
        plain = dict(expanded(turned, list(view.source.tensors), ()))
        final = self._paired({**guessed, **plain})  # type: ignore[dict-item]
        unmatched_lines = [f"torch {name} {view.source.shapes[name]}" for name in final.left_in_torch()]
        unmatched_lines += [f"flax  {leaf} {view.tree.leaves[leaf].shape}" for leaf in final.left_in_flax()]
        unmatched = (*self._faults, *final.faults, *unmatched_lines)
        return Mapping({**self.fixed, **guessed, **turned}, reasons, unmatched, notes)

    def _paired(self, guessed: Plain) -> Pairing:
        view = self._view
        return pair(view.tree, view.source, {**guessed, **view.entries}, self._no_flax)

    def bare(self, path: str) -> str:
        return self._pairing.names.bare.get(path, path)
