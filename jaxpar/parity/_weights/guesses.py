"""Guess a mapping for the tensors and leaves that remain unpaired."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from .fused_guesses import fused, reason, stacks
from .fusion import PairingView
from .mapping import Entries, Mapping, Plain, Split, Target, ignored
from .pairing import Pairing, pair
from .source import WeightSource
from .suggest import Calls, LayerGroup, Turn, entries, groups, turns
from .tree import Outline, owner
from .unstacked import Key, alike, expanded, shortened


class Guesses:
    """Guesses for two models, in addition to a fixed mapping; `groups` are unpaired layers."""

    def __init__(
        self,
        tree: Outline,
        source: WeightSource,
        fixed: Entries | None = None,
        ignore_torch: Iterable[str] = (),
        ignore_flax: Iterable[str] = (),
        calls: Calls | None = None,
        interleaved: int = 1,
    ):
        self.fixed, self._fused = dict(fixed or {}), dict[Key, Target]()
        no_torch, unknown_t = ignored(source.tensors, ignore_torch, "ignore_torch")
        no_flax, unknown_f = ignored(tree.leaves, ignore_flax, "ignore_flax")
        torch_source = source.without(no_torch)
        self._view = PairingView(tree, torch_source, self.fixed)
        self._begin(no_flax)
        for guess in (stacks, partial(fused, calls=calls, groups=interleaved)):
            if entries := guess(self._pairing, *self._leftovers()):
                self._fused |= shortened(entries, [*self._pairing.names.bare.values()])
                self._view = PairingView(tree, torch_source, {**self._fused, **self.fixed})
                self._begin(no_flax)
        self._faults = (*unknown_t, *unknown_f, *self._view.faults)
        self.groups = self._apart(calls)

    def _begin(self, no_flax: Iterable[str]) -> None:
        self._no_flax, self._misnamed = self._view.paired_leaves(no_flax), frozenset[str]()
        self._pairing = self._paired({})

    def _apart(self, calls: Calls | None) -> list[LayerGroup]:
        """Return the groups, with layers that have one name and other shapes wherever they have a partner.

        Layers of two Sequentials are numbered apart if only one has a layer without weights among them.
        """
        self._misnamed = frozenset(self._pairing.misfits)
        while True:
            self._pairing = self._paired({})
            layer_groups = groups(self._pairing, *self._leftovers(), calls)
            partnered = self._misnamed & {path for group in layer_groups for path in group.torch}
            if partnered == self._misnamed:
                return layer_groups
            self._misnamed = partnered

    def _leftovers(self) -> tuple[list[str], list[str]]:
        return self._pairing.left_in_torch(), self._pairing.left_in_flax()

    def heads(self) -> list[int]:
        """Return the values of `groups` to try: 1, and the numbers of heads of fused layers."""
        split = {
            path for target in self._fused.values() if isinstance(target, Split) for path in target.targets
        }
        kernels = [
            leaf.shape
            for path, leaf in self._view.tree.leaves.items()
            if len(leaf.shape) == 3 and any(alike(owner(path), str(pattern)) for pattern in split)
        ]
        return list(dict.fromkeys([1, *(shape[1] for shape in kernels)]))

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
        short = shortened(guessed, [*view.source.tensors, *self._pairing.names.bare.values()])
        for key, target in short.items():
            if key not in guessed:
                first = next(reasons[k] for k, path in guessed.items() if alike(path, str(target)))
                reasons[key] = re.sub(r"number \d+ of (\d+)", r"all \1 in order", first)
        entries_of_all = {**self.fixed, **self._fused, **short, **turned}
        why: dict[Any, str] = {**{key: reason(target) for key, target in self._fused.items()}, **reasons}
        why = {key: text for key, text in why.items() if key in entries_of_all}
        return Mapping(entries_of_all, why, unmatched, notes)

    def _paired(self, guessed: Plain) -> Pairing:
        view = self._view
        return pair(view.tree, view.source, {**guessed, **view.entries}, self._no_flax, self._misnamed)

    def bare(self, path: str) -> str:
        return self._pairing.names.bare.get(path, path)
