"""Runtime: a library's code around its models, and which parts of that code a ported file contains.

transformers' models run inside its own decorators, caches and base classes. `rules.transformers_names` lists
those with a counterpart, and functions that ran are ported like a user's. The translation of anything else
raises `Beyond`; a branch that needs it and did not run raises in the ported file.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from ..rules import stand_ins, transformers_stand_ins
from ..rules import transformers_names as runtime_names
from .packages import is_installed
from .source import Source, source_of
from .watching import Watched


class Beyond(Exception):
    """A part of a library's runtime that did not run."""


def home_of(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__ + "."
    module = getattr(value, "__module__", None)
    return f"{module}." if isinstance(module, str) else ""


def library_name(value: Any) -> str:
    """As in the rules: `transformers.modeling_utils.PreTrainedModel.post_init`."""
    path = home_of(value).removeprefix(f"{runtime_names.LIBRARY}.")
    return f"transformers.{path}{getattr(value, '__qualname__', '')}" if of_library(value) else ""


def of_library(value: Any) -> bool:
    return home_of(value).startswith(f"{runtime_names.LIBRARY}.")


def of_runtime(value: Any) -> bool:
    return of_library(value) and not home_of(value).startswith(f"{runtime_names.LIBRARY}.models.")


def stand_in(value: Any) -> str | None:
    for name, module in runtime_names.STAND_INS.items():
        # transformers is optional, and a module that is not loaded cannot have defined the value.
        home = sys.modules.get(f"{runtime_names.LIBRARY}.{module}")
        if home is not None and vars(home).get(name) is value:
            return name
    return "ModelOutput" if _is_output(value) else None


def _is_output(value: Any) -> bool:
    """Return whether a class is a base of outputs: a dict of a dataclass's fields, also by number."""
    is_dict = inspect.isclass(value) and issubclass(value, dict) and not issubclass(value, nn.Module)
    return is_dict and {"__post_init__", "to_tuple"} <= vars(value).keys()


@functools.cache
def stand_in_sources() -> tuple[Source, Source]:
    """Return the two files of replacements: for any library, and for transformers."""
    return source_of(inspect.getfile(stand_ins)), source_of(inspect.getfile(transformers_stand_ins))


def is_config(value: Any) -> bool:
    """Whether a class is a library's configuration, which the file can import: it needs no torch."""
    return inspect.isclass(value) and any(
        library_name(base) == f"transformers.configuration_utils.{runtime_names.CONFIG}"
        for base in value.__mro__
    )


def is_logger(value: Any) -> bool:
    """Return whether a value is the logger of an installed package."""
    return isinstance(value, logging.Logger) and is_installed(value.name.partition(".")[0])


def runtime_bases(kind: Any) -> list[type]:
    bases = kind.__mro__ if inspect.isclass(kind) else ()
    return [base for base in bases if of_runtime(base) and issubclass(base, nn.Module)]


def for_runtime(kind: Any, name: str) -> bool:
    """Whether an attribute of a class is one that its runtime bases declare, for their own methods."""
    if name in vars(nn.Module) or not inspect.isclass(kind):
        return False
    return any(name in vars(base) | inspect.get_annotations(base) for base in _runtime_ancestors(kind))


def _runtime_ancestors(kind: type) -> list[type]:
    ancestors = {
        ancestor: None for base in runtime_bases(kind) for ancestor in base.__mro__ if of_runtime(ancestor)
    }
    return list(ancestors)


def is_beyond(value: Any, watched: Watched) -> bool:
    """Return whether a library's value cannot be written: it did not run, or is not a function or class."""
    if stand_in(value) or library_name(value) in runtime_names.LIBRARY_NAMES:
        return False
    if not of_library(value) or isinstance(value, ModuleType):
        return of_runtime(value)
    if isinstance(value, FunctionType):
        # The runtime's decorators wrap a function; recorded is the innermost function's code.
        return inspect.unwrap(value).__code__ not in watched.functions
    if not inspect.isclass(value):
        return of_runtime(value)
    if issubclass(value, nn.Module):
        return not _class_ran(value, watched)
    return of_runtime(value) and stand_in(value.__mro__[1]) is None


def _class_ran(value: type, watched: Watched) -> bool:
    """For a class without methods, whether its base's did."""
    functions = [function for function in map(_plain, vars(value).values()) if function is not None]
    ran = any(function.__code__ in watched.functions for function in functions)
    return ran or (not functions and any(_class_ran(base, watched) for base in value.__mro__[1:2]))


def _plain(value: Any) -> FunctionType | None:
    value = getattr(value, "__func__", getattr(value, "fget", value))
    value = inspect.unwrap(value) if callable(value) else value
    return value if isinstance(value, FunctionType) else None
