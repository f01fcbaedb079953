"""AdaptedModel: a model of a library that is not Flax, as an NNX module."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from flax import nnx

Handler = Callable[[str, Any, Callable[..., Any], tuple, dict], Any]

handler_of_calls: ContextVar[Handler | None] = ContextVar("handler_of_calls", default=None)


@contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """Route the calls of adapted models' layers to `handler`."""
    token = handler_of_calls.set(handler)
    try:
        yield
    finally:
        handler_of_calls.reset(token)


class Node(nnx.Module):
    """The leaves and nodes below a key, as attributes."""

    _silent: str | None = None  # the key that torch-like names leave out


class AdaptedModel(nnx.Module):
    """The base of NNX modules that wrap other models; `_title` and `_library` are names for reports.

    All names are private: the other attributes are the model's keys.
    """

    _title: str
    _library: str
    _silent: str | None = None  # as in Node

    def _original(self) -> Any:
        """Return the adapted model, with this module's arrays."""
        raise NotImplementedError

    def _node(self, keys: tuple[str, ...]) -> nnx.Module:
        """Return the node below some keys, and make it where it is missing."""
        return functools.reduce(_child, keys, self)


def _child(node: nnx.Module, key: str) -> nnx.Module:
    if not hasattr(node, key):
        setattr(node, key, Node())
    return getattr(node, key)
