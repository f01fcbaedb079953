"""Names: translate torch's names to Flax paths, ignoring the prefixes that wrappers add."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .mapping import Plain, Target, path_of
from .paths import inside, join, prefixes, torch_like
from .source import WeightSource
from .tree import Outline

WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"}
PARAMETRIZED = re.compile(r"parametrizations\.(\w+)\.original([01])$")  # only of weight_norm
COMPILED = re.compile(r"(^|(?<=\.))_orig_mod(\.|$)")  # by torch.compile


class Names:
    def __init__(self, source: WeightSource, tree: Outline, entries: Plain):
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
        # Paths need a raw form too, because Link.torch is passed to torch's get_submodule.
        for path in list(self.descendants):
            self.raw.setdefault(path, self._raw_path(path))
        self._leading: dict[str, list[tuple[bool, str]]] = {}
        for path in self.descendants:
            target, explicit = self.target(path)
            self._leading.setdefault(target, []).append((explicit, path))

    def entry(self, name: str) -> tuple[str, Target] | None:
        """Return the mapping's (key, target) with the longest key that fits, or None."""
        key = next((p for p in reversed(prefixes(name)) if p in self.entries), None)
        return None if key is None else (key, self.entries[key])

    def target(self, name: str) -> tuple[str, bool]:
        """Return the Flax name for a bare name, and whether it comes from the mapping."""
        entry = self.entry(name)
        if entry is None:
            return self._weight_norm(torch_like(name)), False
        key = entry[0]
        return self._weight_norm(torch_like(join(self._targets[key], inside(name, key) or ""))), True

    def leading_to(self, path: str) -> list[str]:
        """The bare names and paths that translate to a Flax path, exactly equal ones first."""
        name = self.tree.names[path]
        leading = self._leading.get(torch_like(name), [])
        # The mapping is explicit, while a torch module may have the same name by coincidence.
        explicit = [bare for by_mapping, bare in leading if by_mapping]
        return explicit or sorted((bare for _, bare in leading), key=lambda bare: bare != name)

    def follows(self, name: str, above: str) -> bool:
        key = self.entry(name)
        return key is None or key[0] in prefixes(above)

    def _weight_norm(self, target: str) -> str:
        older = PARAMETRIZED.sub(lambda match: match[1] + ("_g", "_v")[int(match[2])], target)
        return older if older in self._flax else target

    def _named(self, target: Target) -> str:
        path = path_of(target)
        if path is None:  # a tuple of layers is paired by `stacks`, never by name
            return f"a stack: {target}"
        return self.tree.names.get(self.tree.real_path(path), path)

    def _bare_key(self, key: str) -> str:
        if key in self.bare:
            return self.bare[key]
        # A state_dict has no module paths, so the prefix is taken from the first name under the path.
        raw = next((raw for raw in self.bare if raw.startswith(key + ".")), None)
        if raw is None:
            return key
        suffix = raw[len(key) :]
        return self.bare[raw].removesuffix(suffix) if self.bare[raw].endswith(suffix) else key

    def _raw_path(self, path: str) -> str:
        if not self.descendants[path]:
            return path
        name = self.descendants[path][0]
        return self.raw[name].removesuffix(name[len(path) :]).rstrip(".")


def unwrapped(names: Iterable[str], kinds: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return names and module paths without the prefixes of torch.compile, DataParallel and the like."""
    names, levels = list(names), 0
    if not kinds:
        # Without class names, a `module.` that not all names begin with may be the user's own attribute.
        # Nested wrappers produce `module.module.`
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
    name = COMPILED.sub("", name)
    for _ in range(levels):
        name = COMPILED.sub("", name.removeprefix("module."))
    return name
