"""`Module` (Flax's), `children` and `named_children`."""

from __future__ import annotations

from collections.abc import Iterator

from flax import nnx
from flax.nnx import Module as Module

from ._containers import ModuleDict, ModuleList, Sequential


def named_children(module: nnx.Module) -> Iterator[tuple[str, nnx.Module]]:
    """Yield the modules that are attributes of a module, with their names, in the order of assignment.

    A module assigned twice is yielded once. torch counterpart: `torch.nn.Module.named_children`;
    `nnx.iter_children` sorts by name.
    """
    contained = isinstance(module, Sequential | ModuleList | ModuleDict)
    named = module.named_children() if contained else vars(module).items()
    modules: dict[int, tuple[str, nnx.Module]] = {}
    for name, child in named:
        if isinstance(child, nnx.Module):
            modules.setdefault(id(child), (name, child))
    yield from modules.values()


def children(module: nnx.Module) -> Iterator[nnx.Module]:
    """Yield `named_children` without names. torch counterpart: `torch.nn.Module.children`."""
    return (child for _, child in named_children(module))
