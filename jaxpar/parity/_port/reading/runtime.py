"""Runtime: what a library does around its models, and how much of it a ported file has.

transformers' models run in decorators, caches and base classes of their own. What of these has a counterpart
is in `rules.transformers_words`; functions that ran are ported like a user's; all else is `Beyond`, and a
branch that did not run and that needs it raises.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from ..rules import transformers_stand_ins as stand_ins
from ..rules import transformers_words as words
from .source import Source, source_of
from .watching import Watched


class Beyond(Exception):
    """What belongs to a library's runtime and did not run."""


def home_of(value: Any) -> str:
    """The module that a value is from; of an object that of its class."""
    if isinstance(value, ModuleType):
        return value.__name__ + "."
    found = getattr(value, "__module__", None)
    return f"{found}." if isinstance(found, str) else ""


def word(value: Any) -> str:
    """`transformers.modeling_utils.PreTrainedModel.post_init`: what the rules call a value."""
    inside = home_of(value).removeprefix(f"{words.LIBRARY}.")
    return f"transformers.{inside}{getattr(value, '__qualname__', '')}" if of_library(value) else ""


def of_library(value: Any) -> bool:
    return home_of(value).startswith(f"{words.LIBRARY}.")


def of_runtime(value: Any) -> bool:
    return of_library(value) and not home_of(value).startswith(f"{words.LIBRARY}.models.")


def stand_in(value: Any) -> str | None:
    """The name of what is written instead."""
    for name, module in words.STAND_INS.items():
        home = sys.modules.get(f"{words.LIBRARY}.{module}")
        if home is not None and vars(home).get(name) is value:
            return name
    return None


@functools.cache
def stand_in_source() -> Source:
    return source_of(inspect.getfile(stand_ins))


def is_config(value: Any) -> bool:
    """Whether a class is one of settings, which the file imports: it needs no torch."""
    return inspect.isclass(value) and any(
        word(each) == f"transformers.configuration_utils.{words.CONFIG}" for each in value.__mro__
    )


def is_logger(value: Any) -> bool:
    return isinstance(value, logging.Logger) and value.name.startswith(f"{words.LIBRARY}.")


def runtime_bases(kind: Any) -> list[type]:
    """Those of a class's bases that are modules of the runtime."""
    found = kind.__mro__ if inspect.isclass(kind) else ()
    return [each for each in found if of_runtime(each) and issubclass(each, nn.Module)]


def for_runtime(kind: Any, name: str) -> bool:
    """Whether what a class says under a name is said to its runtime, and not to its own methods."""
    if name in vars(nn.Module) or not inspect.isclass(kind):
        return False
    return any(name in vars(each) | inspect.get_annotations(each) for each in _around(kind))


def _around(kind: type) -> list[type]:
    """The bases of the runtime and theirs, without torch's."""
    found = {each: None for base in runtime_bases(kind) for each in base.__mro__ if of_runtime(each)}
    return list(found)


def is_beyond(value: Any, watched: Watched) -> bool:
    """Whether a value of the library cannot be written: it did not run, or is no function and no class."""
    if stand_in(value) or word(value) in words.LIBRARY_NAMES:
        return False
    if not of_library(value) or isinstance(value, ModuleType):
        return of_runtime(value)
    if isinstance(value, FunctionType):
        return inspect.unwrap(value).__code__ not in watched.functions
    if not inspect.isclass(value):
        return of_runtime(value)
    if issubclass(value, nn.Module):
        return not _class_ran(value, watched)
    return of_runtime(value) and stand_in(value.__mro__[1]) is None


def _class_ran(value: type, watched: Watched) -> bool:
    """Whether a method of a class ran; a class without methods is as its bases are."""
    functions = [each for each in map(_plain, vars(value).values()) if each is not None]
    ran = any(each.__code__ in watched.functions for each in functions)
    return ran or (not functions and any(_class_ran(each, watched) for each in value.__mro__[1:2]))


def _plain(value: Any) -> FunctionType | None:
    value = getattr(value, "__func__", getattr(value, "fget", value))
    value = inspect.unwrap(value) if callable(value) else value
    return value if isinstance(value, FunctionType) else None
