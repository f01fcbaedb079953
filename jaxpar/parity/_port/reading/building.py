"""Building: the arguments that the module was made with, as an expression of the ported file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import nn

from .. import rules
from .packages import is_users
from .runtime import is_config
from .scope import defined_by_user, import_of_config, is_layer, jaxpar_layer, rule_name
from .watching import profiled


@dataclasses.dataclass(frozen=True)
class Construction:
    value: Any
    maker: Any
    arguments: inspect.ArgInfo


Constructions = dict[int, list[Construction]]
"""By the object's id: its class, then the functions that returned it, innermost first."""


class Inexpressible(Exception):
    """An argument that cannot be written as Python."""


def record_constructions(run: Callable[[], Any]) -> tuple[Any, Constructions]:
    """Run a call and record how objects are constructed; of nested constructors, the outermost counts."""
    calls: Constructions = {}
    open_frames: dict[Any, inspect.ArgInfo] = {}

    def note(frame: Any, event: str, value: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not (is_users(code.co_filename) or _inherited(frame)):
            return
        if event == "call":
            # When a call starts, the frame's locals are its arguments as bound, defaults included.
            # They are copied, because many constructors pop their entries.
            info = inspect.getargvalues(frame)
            open_frames[frame] = info = info._replace(locals=_copied(info.locals))
            instance = info.locals.get(info.args[0]) if info.args and code.co_name == "__init__" else None
            # A class's __init__ starts before its bases', which get the same instance. `Construction`
            # keeps it alive, so that no later object gets its id.
            if instance is not None and id(instance) not in calls:
                calls[id(instance)] = [Construction(instance, type(instance), info)]
        elif isinstance(value, nn.Module) and frame in open_frames:
            function = frame.f_globals.get(code.co_name)
            # A method or nested function may have the name of a function at the top level.
            if getattr(function, "__code__", None) is code:
                calls.setdefault(id(value), []).append(Construction(value, function, open_frames[frame]))

    with profiled(note):
        result = run()
    return result, calls


def kept_arguments(calls: Constructions) -> dict[type, str]:
    """Return the attributes in which decorators of constructors keep all arguments by name, by class."""
    attributes: dict[type, str] = {}
    for first, *_ in calls.values():
        kind, info = first.maker, first.arguments
        if not (
            inspect.isclass(kind) and issubclass(kind, nn.Module) and hasattr(kind.__init__, "__wrapped__")
        ):
            continue
        arguments = {name: info.locals[name] for name in info.args[1:]}
        for name, value in _mappings(first.value):
            if arguments and all(key in value and _equal(value[key], x) for key, x in arguments.items()):
                attributes.setdefault(kind, name)
    return attributes


def typed_by_parameters(make: Callable[[], nn.Module], net: nn.Module) -> frozenset[type]:
    """Return the classes whose property `dtype` is their parameters' type, and no constant."""
    kinds = {
        type(child) for child in net.modules() if isinstance(getattr(type(child), "dtype", None), property)
    }
    if not kinds:
        return frozenset()
    constant = {
        type(child) for child in make().double().modules() if type(child) in kinds and not _is_double(child)
    }
    return frozenset(kinds - constant)


def keeping_modules(net: nn.Module) -> frozenset[type]:
    """Return the plain classes of objects that are attributes of modules and keep modules themselves."""
    kinds: set[type] = set()
    for x in (
        x for child in net.modules() for attribute in vars(child).values() for x in _elements(attribute)
    ):
        if not isinstance(x, nn.Module) and defined_by_user(type(x)):
            inner = (y for attribute in getattr(x, "__dict__", {}).values() for y in _elements(attribute))
            if any(isinstance(y, nn.Module) for y in inner):
                kinds |= {base for base in type(x).__mro__ if defined_by_user(base)}
    return frozenset(kinds)


def _elements(value: Any) -> list[Any]:
    """Return the elements of a list, a tuple or a dict, or the value alone."""
    return (
        [*value.values()]
        if isinstance(value, dict)
        else [*value]
        if isinstance(value, list | tuple)
        else [value]
    )


def _is_double(module: Any) -> bool:
    try:
        return module.dtype is torch.float64
    except Exception:  # a property of a module that is in another state
        return False


def _equal(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # arrays have no truth value
        return False


def _mappings(module: nn.Module) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a module's properties that are dicts, then its attributes."""
    properties = [name for name in dir(type(module)) if isinstance(getattr(type(module), name), property)]
    for name in (*properties, *vars(module)):
        try:
            value = getattr(module, name)
        except Exception:  # a property of a module that is in another state
            continue
        if isinstance(value, Mapping) and name not in vars(nn.Module()):
            yield name, value


def _copied(value: Any) -> Any:
    """Return a copy of nested containers with the same elements."""
    if type(value) is dict:
        return {key: _copied(entry) for key, entry in value.items()}
    return type(value)(map(_copied, value)) if type(value) in (list, tuple) else value


def _inherited(frame: Any) -> bool:
    code = frame.f_code
    if code.co_name != "__init__" or not code.co_argcount:
        return False
    kind = type(frame.f_locals.get(code.co_varnames[0]))
    users_layer = issubclass(kind, nn.Module) and defined_by_user(kind)
    return users_layer and getattr(kind.__init__, "__code__", None) is code


def maker_of(module: nn.Module) -> Callable[[], nn.Module]:
    """Return a constructor for an existing module: its arguments are the attributes of the same names."""
    kind: Any = type(module)
    arguments = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if hasattr(module, name):
            arguments[name] = getattr(module, name)
        elif parameter.default is parameter.empty:
            message = f"{kind.__name__} has no attribute {name}, so its arguments are unknown"
            raise Inexpressible(f"{message}; give a function that makes it")
    make: Callable[[], nn.Module] = functools.partial(kind, **arguments)
    # An attribute need not hold the argument of its name; different tensors show most such cases.
    shapes = [{name: x.shape for name, x in net.state_dict().items()} for net in (module, make())]
    if shapes[0] != shapes[1]:
        raise Inexpressible(f"{kind.__name__} with the arguments {list(arguments)} has other tensors")
    return make


class Expressions:
    """Values as Python writes them; `roots` are the user's classes and functions in the expressions.

    `objects` are the arguments that cannot be written, by their names in the expressions.

    `takes_rngs` returns whether a user's class or function takes `rngs` in the ported file.
    """

    def __init__(self, calls: Constructions, takes_rngs: Callable[[Any], bool]):
        self.calls, self.takes_rngs = calls, takes_rngs
        self.roots: list[Any] = []
        self.imports: dict[str, str] = {}
        self.objects: dict[str, Any] = {}
        self._names_objects = False

    def construction(self, instance: Any) -> str:
        """Write the call that made an object: its constructor's, or the innermost writable function's."""
        if id(instance) not in self.calls:
            if isinstance(instance, nn.Module) and defined_by_user(type(instance)):
                return f"{self.text(type(instance))}()"
            raise Inexpressible(f"{type(instance).__name__} cannot be written down")
        first, *others = self.calls[id(instance)]
        before = len(self.roots)
        try:
            return self._call(first)
        except Inexpressible as error:
            for other in others:
                del self.roots[before:]
                with contextlib.suppress(Inexpressible):
                    return self._call(other)
            if not isinstance(instance, nn.Module) or self._names_objects:
                raise error
            del self.roots[before:]
            self._names_objects = True
            return self._call(first)

    def _call(self, construction: Construction) -> str:
        maker, info = construction.maker, construction.arguments
        names = info.args[1:] if inspect.isclass(maker) else info.args
        arguments = [self._argument(maker, name, info.locals[name]) for name in names]
        arguments = [argument for argument in arguments if argument]
        arguments += (
            [self.text(argument) for argument in info.locals.get(info.varargs, ())] if info.varargs else []
        )
        more = info.locals.get(info.keywords, {}) if info.keywords else {}
        arguments += [f"{name}={self.text(value)}" for name, value in more.items()]
        arguments += (
            ["rngs=rngs"] if isinstance(construction.value, nn.Module) and self.takes_rngs(maker) else []
        )
        return f"{self.text(maker)}({', '.join(arguments)})"

    def _argument(self, kind: Any, name: str, value: Any) -> str:
        """Write an argument by name; "" if it has its default."""
        default = inspect.signature(kind).parameters[name].default
        try:
            if default is value or (default is not inspect.Parameter.empty and bool(default == value)):
                return ""
        except Exception:  # `==` of any class may raise, or return an array without a truth value
            pass
        try:
            return f"{name}={self.text(value)}"
        except Inexpressible:
            if isinstance(value, nn.Module | torch.Tensor) or not self._names_objects:
                raise
            if self.objects.setdefault(name, value) is not value:
                raise
            return f"{name}={name}"

    def text(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return repr(value)
        if isinstance(value, list | tuple | set) and type(value) in (list, tuple, set):
            elements = ", ".join(map(self.text, value))
            return {list: f"[{elements}]", set: f"{{{elements}}}"}.get(
                type(value), f"({elements},)" if len(value) == 1 else f"({elements})"
            )
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self.text(k)}: {self.text(v)}" for k, v in value.items()) + "}"
        if isinstance(value, functools.partial):
            self.imports["partial"] = "from functools import partial"
            arguments = [self.text(value.func), *map(self.text, value.args)]
            arguments += [f"{name}={self.text(argument)}" for name, argument in value.keywords.items()]
            return f"partial({', '.join(arguments)})"
        return self._object(value)

    def _object(self, value: Any) -> str:
        if is_config(value):
            self.imports[value.__name__] = import_of_config(value)
            return value.__name__
        if defined_by_user(value):
            self.roots.append(value)
            return value.__name__
        if is_layer(value) and jaxpar_layer(value):
            return f"nn.{value.__name__}"
        if rule_name(value) in rules.NAMES:
            return rules.NAMES[rule_name(value)]  # type: ignore[index]
        if dataclasses.is_dataclass(value) and not isinstance(value, type) and defined_by_user(type(value)):
            fields = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init]
            return f"{self.text(type(value))}({', '.join(f'{name}={self.text(x)}' for name, x in fields)})"
        if isinstance(value, torch.Tensor):
            raise Inexpressible("a tensor among the constructor's arguments cannot be written down")
        return self.construction(value)


def is_plain_function(make: Any) -> bool:
    plain = isinstance(make, FunctionType) and not hasattr(make, "__wrapped__")
    return plain and defined_by_user(make) and make.__name__ != "<lambda>"
