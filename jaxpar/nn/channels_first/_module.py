"""Module: Flax's, under the name that torch's layers have it; and the modules in one."""

from __future__ import annotations

from collections.abc import Iterator

from flax import nnx
from flax.nnx import Module as Module

from ._containers import ModuleDict, ModuleList, Sequential


def named_children(module: nnx.Module) -> Iterator[tuple[str, nnx.Module]]:
    """The modules that are attributes of a module, with their names, in the order in which they were set.

    torch counterpart: `torch.nn.Module.named_children`; `nnx.iter_children` sorts by name.
    """
    if isinstance(module, Sequential | ModuleList | ModuleDict):
        yield from module.named_children()
        return
    yield from ((name, each) for name, each in vars(module).items() if isinstance(each, nnx.Module))


def children(module: nnx.Module) -> Iterator[nnx.Module]:
    """`named_children` without names. torch counterpart: `torch.nn.Module.children`."""
    return (child for _, child in named_children(module))
