"""Interventions in torch's backward pass: attributes of a layer that decide which gradients there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

Settings = list[tuple[Any, str, Any]]  # attributes to set: (object, name, value)


def interventions(layer: torch.nn.Module, padded: Iterable[int | None]) -> Iterator[tuple[str, Settings]]:
    """Yield texts and settings; `padded` are the rows of an embedding that may be its padding_idx."""
    if isinstance(layer, torch.nn.Embedding):
        for index in padded:
            if index != layer.padding_idx:
                text = f"padding_idx={layer.padding_idx} (it acts as {index})"
                yield text, [(layer, "padding_idx", index)]
    named = dict(layer.named_parameters())
    trained = [name for name, tensor in named.items() if tensor.requires_grad]
    frozen = [name for name in named if name not in trained]
    for names in [[name] for name in named] + [group for group in (trained, frozen) if len(group) > 1]:
        label = " and ".join(names)
        text = f"a gradient reaches {label} (none does: it is stopped, or not used)"
        if names[0] in frozen:
            text = f"{label} is frozen, requires_grad=False (it has a gradient: stop_gradient)"
        yield text, [(named[name], "requires_grad", name in frozen) for name in names]


@contextmanager
def intervened(settings: Settings) -> Iterator[None]:
    with ExitStack() as stack:
        for holder, name, value in settings:
            stack.callback(setattr, holder, name, getattr(holder, name))
            setattr(holder, name, value)
        yield
