"""Building: with what arguments the module was made, as an expression of the ported file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import nn

from .. import rules
from .profiling import profiled
from .runtime import is_config
from .scope import defined_by_user, import_of_config, is_layer, own_layer, word_of
from .watching import is_users


@dataclasses.dataclass(frozen=True)
class Made:
    """How an object was made: by a class or a function of the user, with these arguments."""

    value: Any
    maker: Any
    arguments: inspect.ArgInfo


Calls = dict[int, list[Made]]
"""By the object's id: its class, then the functions that passed it on, the innermost first."""


class Inexpressible(Exception):
    """An argument that cannot be written down."""


def noted(run: Callable[[], Any]) -> tuple[Any, Calls]:
    """The result of a call, and how objects were made on the way.

    Of nested constructors the outermost counts.
    """
    calls: Calls = {}
    open_frames: dict[Any, inspect.ArgInfo] = {}

    def note(frame: Any, event: str, value: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not (is_users(code.co_filename) or _inherited(frame)):
            return
        if event == "call":
            info = inspect.getargvalues(frame)
            more = {info.keywords: dict(info.locals[info.keywords])} if info.keywords else {}
            open_frames[frame] = info = info._replace(locals={**info.locals, **more})
            made = info.locals.get(info.args[0]) if info.args and code.co_name == "__init__" else None
            if made is not None and id(made) not in calls:
                calls[id(made)] = [Made(made, type(made), info)]
        elif isinstance(value, nn.Module) and frame in open_frames:
            function = frame.f_globals.get(code.co_name)
            if getattr(function, "__code__", None) is code:
                calls.setdefault(id(value), []).append(Made(value, function, open_frames[frame]))

    with profiled(note):
        result = run()
    return result, calls


def _inherited(frame: Any) -> bool:
    """Whether this is torch's constructor of a layer at work for a class of the user that has none."""
    code = frame.f_code
    if code.co_name != "__init__" or not code.co_argcount:
        return False
    kind = type(frame.f_locals.get(code.co_varnames[0]))
    return (
        issubclass(kind, nn.Module)
        and defined_by_user(kind)
        and getattr(kind.__init__, "__code__", None) is code
    )


def maker_of(module: nn.Module) -> Callable[[], nn.Module]:
    """A constructor for a module that is there already: its arguments are the attributes of their names.

    Raises:
      Inexpressible: an argument is no attribute, or what is made has other tensors.
    """
    kind: Any = type(module)
    given = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if hasattr(module, name):
            given[name] = getattr(module, name)
        elif parameter.default is parameter.empty:
            said = f"{kind.__name__} has no attribute {name}, so its arguments are unknown"
            raise Inexpressible(f"{said}; give a function that makes it")
    make: Callable[[], nn.Module] = functools.partial(kind, **given)
    shapes = [{name: x.shape for name, x in each.state_dict().items()} for each in (module, make())]
    if shapes[0] != shapes[1]:
        raise Inexpressible(f"{kind.__name__} with the arguments {list(given)} has other tensors")
    return make


class Expressions:
    """Values as Python writes them.

    Attributes:
      takes_rngs: whether a class or function of the user is given `rngs` in the ported file.
      roots: classes and functions of the user that occur in them.
    """

    def __init__(self, calls: Calls, takes_rngs: Callable[[Any], bool]):
        self.calls, self.takes_rngs = calls, takes_rngs
        self.roots: list[Any] = []
        self.imports: dict[str, str] = {}

    def construction(self, made: Any) -> str:
        """The call that made an object: of its constructor, or of the innermost function that can be said."""
        if id(made) not in self.calls:
            if isinstance(made, nn.Module) and defined_by_user(type(made)):
                return f"{self.text(type(made))}()"
            raise Inexpressible(f"{type(made).__name__} cannot be written down")
        first, *others = self.calls[id(made)]
        before = len(self.roots)
        try:
            return self._call(first)
        except Inexpressible as error:
            for other in others:
                del self.roots[before:]
                with contextlib.suppress(Inexpressible):
                    return self._call(other)
            raise error

    def _call(self, made: Made) -> str:
        maker, info = made.maker, made.arguments
        names = info.args[1:] if inspect.isclass(maker) else info.args
        said = [self._argument(maker, name, info.locals[name]) for name in names]
        said = [each for each in said if each]
        said += [self.text(each) for each in info.locals.get(info.varargs, ())] if info.varargs else []
        more = info.locals.get(info.keywords, {}) if info.keywords else {}
        said += [f"{name}={self.text(value)}" for name, value in more.items()]
        said += ["rngs=rngs"] if isinstance(made.value, nn.Module) and self.takes_rngs(maker) else []
        return f"{self.text(maker)}({', '.join(said)})"

    def _argument(self, kind: Any, name: str, value: Any) -> str:
        """Without arguments that have their default; by name."""
        default = inspect.signature(kind).parameters[name].default
        try:
            if default is value or (default is not inspect.Parameter.empty and bool(default == value)):
                return ""
        except Exception:
            pass
        return f"{name}={self.text(value)}"

    def text(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return repr(value)
        if isinstance(value, list | tuple | set) and type(value) in (list, tuple, set):
            inside = ", ".join(map(self.text, value))
            return {list: f"[{inside}]", set: f"{{{inside}}}"}.get(
                type(value), f"({inside},)" if len(value) == 1 else f"({inside})"
            )
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self.text(k)}: {self.text(v)}" for k, v in value.items()) + "}"
        if isinstance(value, functools.partial):
            self.imports["partial"] = "from functools import partial"
            said = [self.text(value.func), *map(self.text, value.args)]
            return (
                f"partial({', '.join([*said, *(f'{k}={self.text(v)}' for k, v in value.keywords.items())])})"
            )
        return self._object(value)

    def _object(self, value: Any) -> str:
        if is_config(value):
            self.imports[value.__name__] = import_of_config(value)
            return value.__name__
        if defined_by_user(value):
            self.roots.append(value)
            return value.__name__
        if is_layer(value) and own_layer(value):
            return f"nn.{value.__name__}"
        if word_of(value) in rules.NAMES:
            return rules.NAMES[word_of(value)]  # type: ignore[index]
        if dataclasses.is_dataclass(value) and not isinstance(value, type) and defined_by_user(type(value)):
            fields = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init]
            return f"{self.text(type(value))}({', '.join(f'{name}={self.text(x)}' for name, x in fields)})"
        if isinstance(value, torch.Tensor):
            raise Inexpressible("a tensor among the constructor's arguments cannot be written down")
        return self.construction(value)


def named(make: Any) -> bool:
    """Whether `make` is a function of the user that can be ported itself: one without decorators."""
    plain = isinstance(make, FunctionType) and not hasattr(make, "__wrapped__")
    return plain and defined_by_user(make) and make.__name__ != "<lambda>"
