"""Gradients that differ where outputs agree: torch frozen or padded elsewhere, until it is Flax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from .._result import Cause
from .._sides.task import Named
from .forward import Forward
from .search import EQUAL, relative_error

Way = tuple[str, Callable[[], AbstractContextManager[None]]]
"""In words what is right and what Flax does instead, and torch doing so."""


def causes(forward: Forward, path: str, flax: str) -> tuple[Cause, ...]:
    """Why the gradients of a layer's own tensors are not torch's."""
    every = forward.candidate.step(forward.batch, forward.seen.masks, keep=False).gradients
    ours = {name: x for name, x in every.items() if name.startswith(f"{flax}.")}
    theirs = forward.seen.gradients
    found = []
    for text, doing in _ways(forward.module.get_submodule(path), ours, theirs):
        with doing():
            again = forward.gradients()
        relative = max((relative_error(x, again[name]) for name, x in ours.items()), default=1.0)
        if relative <= EQUAL:
            found.append(Cause(text, relative))
    return tuple(sorted(found, key=lambda cause: cause.relative))


def _ways(layer: torch.nn.Module, ours: Named, theirs: Named) -> Iterator[Way]:
    if isinstance(layer, torch.nn.Embedding):
        for index in _padded(layer, ours, theirs):
            if index != layer.padding_idx:
                text = f"padding_idx={layer.padding_idx} (it acts as {index})"
                yield text, _setting(layer, "padding_idx", index)
    named = dict(layer.named_parameters())
    trained = [name for name, tensor in named.items() if tensor.requires_grad]
    frozen = [name for name in named if name not in trained]
    for names in [[name] for name in named] + [each for each in (trained, frozen) if len(each) > 1]:
        said = " and ".join(names)
        text = f"a gradient reaches {said} (none does: it is stopped, or not used)"
        if names[0] in frozen:
            text = f"{said} is frozen, requires_grad=False (it has a gradient: stop_gradient)"
        yield text, _turning([named[name] for name in names])


def _padded(layer: torch.nn.Embedding, ours: Named, theirs: Named) -> Iterator[int | None]:
    """None, and the rows that have a gradient in torch and none in Flax."""
    yield None
    for name, x in ours.items():
        if x.ndim == 2 and len(x) == layer.num_embeddings:
            lost = (x == 0).all(1) & (theirs[name] != 0).any(1)
            yield from map(int, lost.nonzero()[0][:2])


def _turning(parameters: list[torch.nn.Parameter]) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def doing() -> Iterator[None]:
        with ExitStack() as stack:
            for each in parameters:
                stack.enter_context(_setting(each, "requires_grad", not each.requires_grad)())
            yield

    return doing


def _setting(holder: Any, name: str, value: Any) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def doing() -> Iterator[None]:
        before = getattr(holder, name)
        setattr(holder, name, value)
        try:
            yield
        finally:
            setattr(holder, name, before)

    return doing
