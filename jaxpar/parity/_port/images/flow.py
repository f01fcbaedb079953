"""Flow: which tensors with four axes pass which expression of the source, and which layers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from ..._sides.step_data import IMAGES as AXES
from ..._sides.torch_side import named_leaves
from ..reading.source import Key
from ..reading.watching import Watched


class Called(NamedTuple):
    module: nn.Module
    arguments: frozenset[int]  # the ids of tensors
    results: frozenset[int]


class Flow(Watched):
    """What ran, with the ids of each expression's tensors.

    `within` has the ids in an expression's lists, tuples and dicts; `first` is the expression in which a
    tensor appeared first, in the module's call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[Key, set[int]] = {}
        self.within: dict[Key, set[int]] = {}
        self.first: dict[int, Key | None] = {}
        self.calls: list[Called] = []
        # An id is an address: as long as tensors are compared by id, none may be freed.
        self._tensors: dict[int, torch.Tensor] = {}

    def probe(self, key: Key, value: Any) -> Any:
        if self.in_call:
            if isinstance(value, torch.Tensor):
                self._note(self.at, key, [value])
            elif isinstance(value, list | tuple | Mapping):
                self._note(self.within, key, named_leaves(value).values())
        return super().probe(key, value)

    def _note(self, table: dict[Key, set[int]], key: Key, tensors: Iterable[torch.Tensor]) -> None:
        for number in self._numbers(tensors):
            self.first.setdefault(number, key)
            table.setdefault(key, set()).add(number)

    def _numbers(self, tensors: Iterable[torch.Tensor]) -> frozenset[int]:
        images = {id(tensor): tensor for tensor in tensors if tensor.ndim == AXES}
        self._tensors.update(images)
        return frozenset(images)

    @contextmanager
    def listening(self) -> Iterator[None]:
        # Probes are in the user's code only; a Sequential calls its layers in torch's.
        hook = nn.modules.module.register_module_forward_hook(self._after, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    @functools.cached_property
    def with_images(self) -> set[int]:
        """The ids of the modules that had an image as argument or result; read after all calls."""
        return {id(call.module) for call in self.calls if call.arguments or call.results}

    def is_floating_point(self, number: int) -> bool:
        return self._tensors[number].is_floating_point()

    def _after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.in_call:
            arguments, results = (self._numbers(named_leaves(x).values()) for x in ((args, kwargs), output))
            for number in (*arguments, *results):
                # A tensor that no expression evaluated to before came from a layer, not from an attribute.
                self.first.setdefault(number, None)
            self.calls.append(Called(module, arguments, results))
