"""Checks of the arguments of public functions and classes by their annotations.

A module's public names are replaced by checked ones as soon as its code has run, so that each is one object
wherever it is used, keeps its signature and can be pickled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.machinery
import importlib.util
import inspect
import itertools
import opcode
import re
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

from .kinds import (
    LIBRARIES,
    Accepts,
    accepts_of,
    described,
    error_class,
    has_path,
    is_array,
    is_array_type,
    is_bounded,
    is_floating,
    is_tensor,
    limits,
    unaliased,
)
from .values import shown

_PUBLIC: dict[str, set[str]] = {}
"""The public names of each module."""
_RAW: tuple[type[Exception], ...] = (
    *(AttributeError, LookupError, NameError, AssertionError, RecursionError, UnicodeError),
    *(ZeroDivisionError, OverflowError),
)
"""Errors that describe the library's code and not the call. Others keep their class, as `jax_debug_nans`'s
FloatingPointError and MemoryError do."""


def check_on_import(package: str, stub: str) -> None:
    """Check the arguments of all public functions and classes in a package's `.pyi` by their annotations.

    It happens when their own module is imported, so that a name is the same object wherever it is used.
    """
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
    for module, name in re.findall(r"from (\.[\w.]+) import (\w+) as", Path(stub).read_text()):
        _PUBLIC.setdefault(importlib.util.resolve_name(module, package), set()).add(name)


class _Finder:
    """Find the modules with public names, and check these after each module's code has run."""

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in _PUBLIC:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                _check_names(module, _PUBLIC[fullname])

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _check_names(module: types.ModuleType, names: set[str]) -> None:
    for name in names & vars(module).keys():
        value = getattr(module, name)
        if isinstance(value, types.FunctionType) and not _is_checked(value):
            function = checked(value)
            for holder in (module, sys.modules[value.__module__]):
                if vars(holder).get(name) is value:
                    setattr(holder, name, function)
        elif isinstance(value, type):
            check_class(value)


def check_class(kind: type) -> None:
    """Check the arguments of a class's constructor, unless its objects are results, and of its methods.

    Of calls only a layer's are checked, which happen while a program is traced. Those of steps and wrappers
    happen at every step.
    """
    for name, owner in {name: base for base in reversed(kind.__mro__) for name in vars(base)}.items():
        value = vars(owner)[name]
        function = getattr(value, "__func__", value)
        makes = name in ("__new__", "__init__")
        is_layers_call = name == "__call__" and owner.__module__.startswith("jaxpar.nn.")
        is_checked = not _is_result(kind) if makes else is_layers_call or not name.startswith("_")
        if not (is_checked and owner.__module__.startswith("jaxpar.") and inspect.isfunction(function)):
            continue
        if not _is_checked(function):
            is_static = isinstance(value, staticmethod) and not makes
            check = checked(function, None if is_static else owner)
            setattr(owner, name, check if function is value else type(value)(check))


def _is_result(kind: type) -> bool:
    """Whether the library makes a class's objects: they are plain data."""
    attributes = {name for base in kind.__mro__ for name in vars(base)}
    plain = issubclass(kind, tuple) or dataclasses.is_dataclass(kind)
    return plain and not attributes & {"__post_init__", "__call__"}


def checked(function: Callable[..., Any], owner: type | None = None) -> Callable[..., Any]:
    """Return the function with checks of its arguments: TypeError, or ValueError for a number out of bounds.

    An error that the function itself raises for the argument goes first, as its text explains more.
    Annotations that cannot be evaluated, and Any, accept everything. They are read at the first call.
    """
    signature = _Parameters(function, owner)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        positional, named, further = signature.checks
        if further is not None and not all(map(further, args[len(positional) :])):
            return signature.call_with_wrong(args, kwargs)
        for accepts, value in zip(positional, args):  # noqa: B905, because there may be more of either
            if accepts is not None and not accepts(value):
                return signature.call_with_wrong(args, kwargs)
        for name, value in kwargs.items():
            accepts = named.get(name)
            if accepts is not None and not accepts(value):
                return signature.call_with_wrong(args, kwargs)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            signature.explain(error, args, kwargs)
            raise

    return call


def _is_checked(function: Any) -> bool:
    # Not an attribute, which functools.wraps would copy to a wrapper with other parameters.
    return getattr(function, "__code__", None) is _CODE


class _Parameters:
    """A function's or a constructor's parameters, with the check of each."""

    def __init__(self, function: Callable[..., Any], owner: type | None):
        self.function, self.owner = function, owner
        self.is_call = owner is not None and function.__name__ == "__call__"

    @functools.cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    @functools.cached_property
    def checks(self) -> tuple[list[Accepts | None], dict[str, Accepts | None], Accepts | None]:
        """The checks of positional arguments, of named ones, and of further positional ones."""
        checks = {name: self.check(name) for name in self.parameters}
        positional = []
        for name, parameter in self.parameters.items():
            if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                break
            positional.append(checks[name])
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        further = next((checks[p.name] for p in self.parameters.values() if p.kind is p.VAR_POSITIONAL), None)
        named = {name: checks[name] for name, p in self.parameters.items() if p.kind not in several}
        return positional, named, further

    def check(self, name: str, *, bounded: bool = True) -> Accepts | None:
        annotation = self.annotation(name)
        accepts = accepts_of(annotation, bounded=bounded)
        if accepts is None or not self.is_call or not is_array_type(annotation):
            return accepts
        return lambda value: is_tensor(value) and accepts(value)

    def annotation(self, name: str) -> Any:
        """Return a parameter's type, or Any if it has none or names what only type checkers import."""
        annotation = self.parameters[name].annotation
        # A dataclass inherits fields, whose annotations are the text of a base in another module.
        bases = [base for base in getattr(self.owner, "__mro__", ()) if base.__module__ in sys.modules]
        spaces = [vars(sys.modules[base.__module__]) for base in reversed(bases)]
        names = {name: value for space in spaces for name, value in space.items()}
        names |= inspect.unwrap(self.function).__globals__
        with contextlib.suppress(NameError, TypeError, AttributeError):
            while isinstance(annotation, str):
                annotation = eval(annotation, names)
        if isinstance(annotation, dataclasses.InitVar):
            annotation = annotation.type
        is_open = annotation is inspect.Parameter.empty or isinstance(annotation, str)
        return Any if is_open else unaliased(annotation)

    def name(self, args: Sequence[Any]) -> str:
        if self.owner is None:
            return self.function.__qualname__.rpartition("<locals>.")[2]
        kind = args[0] if isinstance(args[0], type) else type(args[0])
        method = self.function.__name__
        return kind.__name__ if method in ("__new__", "__init__", "__call__") else f"{kind.__name__}.{method}"

    def by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        named = itertools.takewhile(lambda p: p.kind is not p.VAR_POSITIONAL, self.parameters.values())
        values = [(p.name, value) for p, value in zip(named, args, strict=False)][self.owner is not None :]
        # In `save(3, step=step)` the keyword is one of `**kwargs`, and no positional parameter.
        only_positional = {p.name for p in self.parameters.values() if p.kind is p.POSITIONAL_ONLY}
        return dict(values) | {name: value for name, value in kwargs.items() if name not in only_positional}

    def further(self, args: Sequence[Any]) -> list[tuple[str, Any]]:
        """Return the values of `*args`, each with the parameter's name."""
        name = next((p.name for p in self.parameters.values() if p.kind is p.VAR_POSITIONAL), "")
        return [(name, value) for value in args[len(self.checks[0]) :]] if name else []

    def call_with_wrong(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call with an argument that its annotation excludes, and raise if the function does not."""
        problem, is_first = self.problem(args, kwargs)
        if problem is not None and is_first:
            raise problem
        try:
            result = self.function(*args, **kwargs)
        except Exception as error:
            if problem is None or (_is_raised_by_library(error) and not isinstance(error, KeyError)):
                self.explain(error, args, kwargs)
                raise
            raise problem from error
        if problem is not None:
            raise problem
        return result

    def problem(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Exception | None, bool]:
        """Return the error of the first argument that its annotation excludes, and whether it goes first.

        A default is accepted. Bounds and paths go before the call, which could write files, or take a huge
        number for the length of a loop; a layer's arguments, as its call may count a batch or draw a number.
        """
        for name, value in [*self.by_name(args, kwargs).items(), *self.further(args)]:
            accepts = self.checks[1].get(name, self.checks[2] if name not in self.checks[1] else None)
            if accepts is None or accepts(value) or value is self.parameters[name].default:
                continue
            annotation = self.annotation(name)
            # Not the shape, which has a different order inside of a layer whose channels are first.
            is_integers = is_floating(annotation) and is_tensor(value)
            value_text = f"an array of {value.dtype}" if is_integers else shown(value)
            text = f"{self.name(args)}: {name} is {value_text}; it must be"
            is_kind = self.check(name, bounded=False) or accepts
            is_huge = isinstance(value, int) and value.bit_length() > 64 and annotation is not SupportsIndex
            if is_huge and is_kind(0):  # a SupportsIndex is a seed, and has torch's message
                return ValueError(f"{text} a number of 64 bits."), True
            if is_kind(value):
                is_first = is_bounded(annotation) or has_path(annotation)
                return error_class(annotation)(f"{text} {limits(annotation)}."), is_first
            kinds = described(annotation)
            is_cured = self.is_call and is_array(value) and kinds.startswith("an array")
            cure = f": pass jnp.asarray({name})" if is_cured else ""
            return TypeError(f"{text} {kinds}{cure}."), has_path(annotation) or self.is_call
        return None, False

    def explain(self, error: Exception, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Add the arguments to an error's notes; raise ValueError instead of an error of Python's own.

        The user's code that runs inside, such as a function that an object holds, may raise anything.
        """
        is_own = _is_raised_by_library(error)
        if not is_own and not _is_inside_libraries(error, self.function):
            return
        values = [*self.by_name(args, kwargs).items(), *self.further(args)]
        listed = ", ".join(f"{name}={shown(value)}" for name, value in values)
        text = f"{self.name(args)} was called with {listed or 'no arguments'}"
        if not is_own and isinstance(error, _RAW) and type(error).__module__ != "jaxpar.errors":
            raise ValueError(f"{text}: {type(error).__name__}: {error}") from error
        are_named = {name for name, _ in values} <= set(re.findall(r"\w+", str(error)))
        names_itself = str(error).startswith(f"{self.name(args)}:")
        is_method = self.owner is not None and not re.match("__|load_state_dict", self.function.__name__)
        if values and (not names_itself or not (is_method or are_named)):
            error.add_note(text)


def _is_inside_libraries(error: Exception, function: Callable[..., Any]) -> bool:
    """Whether none of the user's code was running, besides the function itself."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    others = [frame for frame in frames if frame.f_code is not getattr(function, "__code__", None)]
    roots = {frame.f_globals.get("__name__", "").partition(".")[0] for frame in others}
    return roots <= LIBRARIES | sys.stdlib_module_names


def name_call(error: Exception, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Add a note with the arguments of a step's or a wrapper's call, unless the library raised the error."""
    if not _is_raised_by_library(error):
        listed = [*map(shown, args), *(f"{name}={shown(value)}" for name, value in kwargs.items())]
        error.add_note(f"{function} was called with ({', '.join(listed)}).")


def _is_raised_by_library(error: Exception) -> bool:
    """Whether a `raise` statement of this package is where an error comes from."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    module = "" if last is None else last.tb_frame.f_globals.get("__name__", "")
    # Not the check of a function that is called inside, which names that function's argument.
    if last is None or not module.startswith("jaxpar.") or module == __name__:
        return False
    return last.tb_frame.f_code.co_code[last.tb_lasti] == opcode.opmap["RAISE_VARARGS"]


_CODE = checked(lambda: None).__code__
