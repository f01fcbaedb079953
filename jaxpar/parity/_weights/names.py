"""Names: where torch's names lead in the Flax model, without the words that wrappers put into them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .mapping import Plain, Target, path_of
from .paths import inside, join, prefixes, torch_like
from .source import Source
from .tree import Outline

WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"}
PARAMETRIZED = re.compile(r"parametrizations\.(\w+)\.original([01])$")
"""What torch's weight_norm makes of a name. Nothing else of torch has an original1."""
COMPILED = re.compile(r"(^|(?<=\.))_orig_mod(\.|$)")
"""What torch.compile puts before the names of the module in it."""


class Names:
    """Where torch's names lead.

    Attributes:
      bare: raw name or path to the one without `module.` and `_orig_mod.`
      raw: the way back.
      descendants: for each bare path, the bare names in it.
      kinds: class names by bare path.
      entries: the mapping, with bare keys.
    """

    def __init__(self, source: Source, tree: Outline, entries: Plain):
        self.bare = unwrapped(source.tensors, source.kinds)
        self.raw = {bare: raw for raw, bare in self.bare.items()}
        self.kinds = {self.bare[path]: kinds for path, kinds in source.kinds.items()}
        self.tree = tree
        self._flax = set(tree.names.values())
        self.entries = {self._bare_key(key): target for key, target in entries.items()}
        self._targets = {key: self._named(target) for key, target in self.entries.items()}
        self.descendants: dict[str, list[str]] = {path: [] for path in self.kinds}
        for name in (self.bare[raw] for raw in source.tensors):
            for path in prefixes(name):
                self.descendants.setdefault(path, []).append(name)
        # A path needs its raw form too: Link.torch is for torch's get_submodule.
        for path in list(self.descendants):
            self.raw.setdefault(path, self._raw_path(path))
        self._leading: dict[str, list[tuple[bool, str]]] = {}
        for path in self.descendants:
            target, explicit = self.target(path)
            self._leading.setdefault(target, []).append((explicit, path))

    def entry(self, name: str) -> tuple[str, Target] | None:
        """The mapping's entry for a name: the longest key that fits."""
        key = next((p for p in reversed(prefixes(name)) if p in self.entries), None)
        return None if key is None else (key, self.entries[key])

    def target(self, name: str) -> tuple[str, bool]:
        """The Flax name that a bare name leads to, and whether the mapping says so."""
        entry = self.entry(name)
        if entry is None:
            return self._weight_norm(torch_like(name)), False
        key = entry[0]
        return self._weight_norm(torch_like(join(self._targets[key], inside(name, key) or ""))), True

    def leading_to(self, path: str) -> list[str]:
        """The bare names and paths that lead to a Flax path: those that the mapping names, or those of
        the same name, exact ones first."""
        name = self.tree.names[path]
        leading = self._leading.get(torch_like(name), [])
        # What the mapping names is meant; a torch module that happens to have the same name is not.
        explicit = [bare for by_mapping, bare in leading if by_mapping]
        return explicit or sorted((bare for _, bare in leading), key=lambda bare: bare != name)

    def follows(self, name: str, above: str) -> bool:
        """Whether a name leads where the path above it does, and not somewhere of its own."""
        key = self.entry(name)
        return key is None or key[0] in prefixes(above)

    def _weight_norm(self, target: str) -> str:
        """torch's older names of a magnitude and a direction, where Flax has these."""
        older = PARAMETRIZED.sub(lambda match: match[1] + ("_g", "_v")[int(match[2])], target)
        return older if older in self._flax else target

    def _named(self, target: Target) -> str:
        """What the Flax path of an entry is called without wrappers."""
        path = path_of(target)
        if path is None:  # a stack leads to several layers at once, and to none of them by name
            return f"a stack: {target}"
        return self.tree.names.get(self.tree.real_path(path), path)

    def _bare_key(self, key: str) -> str:
        """A key of the mapping, which may have the wrappers' prefixes or not."""
        if key in self.bare:
            return self.bare[key]
        # A path of a state_dict, whose modules are not known: the first name below it has the same prefix.
        raw = next((raw for raw in self.bare if raw.startswith(key + ".")), None)
        if raw is None:
            return key
        suffix = raw[len(key) :]
        return self.bare[raw].removesuffix(suffix) if self.bare[raw].endswith(suffix) else key

    def _raw_path(self, path: str) -> str:
        """A path as torch has it, from the first name below it."""
        if not self.descendants[path]:
            return path
        name = self.descendants[path][0]
        return self.raw[name].removesuffix(name[len(path) :]).rstrip(".")


def unwrapped(names: Iterable[str], kinds: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Names and module paths without what DataParallel, its like and torch.compile put into them.

    Where the classes are not known, `module.` goes only if all names begin with it: elsewhere it may be the
    user's own word.
    """
    names, levels = list(names), 0
    if not kinds:
        # A wrapper around a wrapper writes `module.module.`
        while names and all(_strip(name, levels).startswith("module.") for name in names):
            levels += 1
        return {name: _strip(name, levels) for name in names}
    return {name: _without_wrappers(name, kinds) for name in [*names, *kinds]}


def _without_wrappers(name: str, kinds: Mapping[str, tuple[str, ...]]) -> str:
    parts = name.split(".") if name else []
    remaining = [
        part
        for i, part in enumerate(parts)
        if not (part == "module" and WRAPPERS & set(kinds.get(".".join(parts[:i]), ())))
    ]
    return COMPILED.sub("", ".".join(remaining)).rstrip(".")


def _strip(name: str, levels: int) -> str:
    """Without `levels` times `module.`; torch.compile may stand before, between and behind them."""
    name = COMPILED.sub("", name)
    for _ in range(levels):
        name = COMPILED.sub("", name.removeprefix("module."))
    return name
