"""Flow: which tensors with four axes pass which place in the source, and through which layers."""

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
    """A call of a module: the numbers of the tensors that it was given, and of those that it made."""

    module: nn.Module
    given: frozenset[int]
    made: frozenset[int]


class Flow(Watched):
    """What was seen, and the tensors in it.

    Attributes:
      at: the numbers of the tensors that an expression was.
      within: those in lists, tuples and dicts that an expression was.
      first: at which place a tensor was met first, in the module's call.
      calls: those of modules, torch's and the user's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[Key, set[int]] = {}
        self.within: dict[Key, set[int]] = {}
        self.first: dict[int, Key | None] = {}
        self.calls: list[Called] = []
        self._kept: dict[int, torch.Tensor] = {}  # a number is an address: nothing may be freed meanwhile

    def probe(self, key: Key, value: Any) -> Any:
        if self.in_call:
            if isinstance(value, torch.Tensor):
                self._note(self.at, key, [value])
            elif isinstance(value, list | tuple | Mapping):
                self._note(self.within, key, named_leaves(value).values())
        return super().probe(key, value)

    def _note(self, found: dict[Key, set[int]], key: Key, tensors: Iterable[torch.Tensor]) -> None:
        for number in self._numbers(tensors):
            self.first.setdefault(number, key)
            found.setdefault(key, set()).add(number)

    def _numbers(self, tensors: Iterable[torch.Tensor]) -> frozenset[int]:
        images = {id(each): each for each in tensors if each.ndim == AXES}
        self._kept.update(images)
        return frozenset(images)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While it lasts, every call of a module is noted."""
        hook = nn.modules.module.register_module_forward_hook(self._after, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    @functools.cached_property
    def seeing_images(self) -> set[int]:
        """The modules, by number, that were given an image or made one; when all calls are over."""
        return {id(each.module) for each in self.calls if each.given or each.made}

    def is_floating_point(self, number: int) -> bool:
        return self._kept[number].is_floating_point()

    def _after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.in_call:
            given, made = (self._numbers(named_leaves(x).values()) for x in ((args, kwargs), output))
            for number in (*given, *made):
                self.first.setdefault(number, None)
            self.calls.append(Called(module, given, made))
