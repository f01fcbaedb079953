"""Call: a model's arguments, split into named arrays and a static form with everything else."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from .._tensors import array_of, is_tensor
from .constants import libraries
from .outputs import CONSTANTS

AsArray = Callable[[Any, str], Any]  # of an argument and its label for errors


@dataclass(frozen=True)
class ArraySlot:
    """The position of an array in a form."""

    name: str


@dataclass(frozen=True, eq=False)
class PassedObject:
    """1, 1.0 and True compare as different objects."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PassedObject) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[type, Any]:
        # The form is part of a jit cache key. Objects without value equality (closures) compare by identity.
        value = self.value
        return type(value), repr(value) if isinstance(value, CONSTANTS) else id(value)


@dataclass(frozen=True)
class Container:
    kind: type
    children: tuple[Form, ...]
    keys: tuple[Any, ...] = ()  # of a dict


Form = ArraySlot | PassedObject | Container


@dataclass(frozen=True)
class Arguments:
    args: Container = Container(tuple, ())
    kwargs: Container = Container(dict, ())

    def by_keyword(self) -> dict[str, Form]:
        return dict(zip(self.kwargs.keys, self.kwargs.children, strict=True))

    def each(self) -> dict[str, Form]:
        return {f"inputs[{i}]": form for i, form in enumerate(self.args.children)} | self.by_keyword()


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of one call, as a pytree whose leaves are the arrays."""

    arrays: Mapping[str, Any] = field(default_factory=dict)  # named `0`, `1['mask']`, `pixel_values`
    form: Arguments = Arguments()

    @classmethod
    def of(
        cls, inputs: Any, kwargs: Mapping[str, Any] | None = None, as_array: AsArray | None = None
    ) -> Call:
        """TypeError if `inputs`, unlike `kwargs`, holds arbitrary objects, or a keyword is not a string."""
        reader = _Reader(as_array or to_array)
        named = dict(inputs) if isinstance(inputs, Mapping) else {}
        if wrong := [key for key in [*named, *(kwargs or {})] if not isinstance(key, str)]:
            raise TypeError(
                f"parity: inputs are a dict with the key {wrong[0]!r}, and its keys are the names of keyword "
                "arguments. A dict that is itself the only argument is given as inputs=(it,)."
            )
        several = isinstance(inputs, (tuple, list))
        positional = () if isinstance(inputs, Mapping) else tuple(inputs) if several else (inputs,)
        args = tuple(reader.form(x, str(i)) for i, x in enumerate(positional))
        by_name = {key: reader.form(x, key) for key, x in named.items()}
        # Objects are allowed in `kwargs` only: in `inputs`, an unknown object is more likely a mistake.
        reader.any_object = True
        by_name |= {key: reader.form(x, key) for key, x in (kwargs or {}).items()}
        return cls(reader.arrays, Arguments(Container(tuple, args), _dict_form(by_name)))._pruned()

    @property
    def args(self) -> tuple:
        return _filled(self.form.args, self.arrays)

    @property
    def kwargs(self) -> dict[str, Any]:
        return _filled(self.form.kwargs, self.arrays)

    def map(self, function: Callable[[Any], Any]) -> Call:
        return Call({name: function(x) for name, x in self.arrays.items()}, self.form)

    def map_objects(self, function: Callable[[Any], Any]) -> Call:
        args, kwargs = (_map_objects(form, function) for form in (self.form.args, self.form.kwargs))
        return Call(self.arrays, Arguments(args, kwargs))

    def with_arrays(self, arrays: Mapping[str, Any]) -> Call:
        return Call({**self.arrays, **arrays}, self.form)

    def with_kwargs(self, other: Call) -> Call:
        # Names of positional arrays start with a digit, which a keyword cannot.
        arrays = {**self.arrays, **{k: x for k, x in other.arrays.items() if not k[:1].isdigit()}}
        both = {**self.form.by_keyword(), **other.form.by_keyword()}
        return Call(arrays, Arguments(self.form.args, _dict_form(both)))._pruned()

    def missing(self) -> list[tuple[str, str]]:
        """Return (argument name, type name) for each object that a record could not store."""
        leaves = [(name, leaf) for name, form in self.form.each().items() for leaf in _leaves(form)]
        values = [(name, leaf.value) for name, leaf in leaves if isinstance(leaf, PassedObject)]
        return [(name, value.kind) for name, value in values if isinstance(value, Missing)]

    def _pruned(self) -> Call:
        slots = {*_leaves(self.form.args), *_leaves(self.form.kwargs)}
        return Call({name: x for name, x in self.arrays.items() if ArraySlot(name) in slots}, self.form)

    def tree_flatten(self) -> tuple[tuple, tuple]:
        return tuple(self.arrays.values()), (tuple(self.arrays), self.form)

    @classmethod
    def tree_unflatten(cls, form: tuple, arrays: tuple) -> Call:
        return cls(dict(zip(form[0], arrays, strict=True)), form[1])


def to_array(x: Any, name: str) -> np.ndarray:
    array = array_of(x) if is_tensor(x) else np.asarray(x)
    if array.dtype.kind not in "biufcV":
        raise TypeError(f"parity.compare: {name} is {type(x).__name__}, not an array of numbers.")
    return array


def is_array(x: Any) -> bool:
    """JAX's random keys are not."""
    if is_tensor(x):
        return True
    dtype = getattr(x, "dtype", None)
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return False
    return hasattr(x, "__array__") and not isinstance(x, type)


class _Reader:
    def __init__(self, as_array: AsArray):
        self.as_array, self.arrays = as_array, dict[str, Any]()
        self.slots: dict[int, tuple[Any, ArraySlot]] = {}  # by id, with the object, which keeps its id
        self.any_object = False

    def form(self, x: Any, name: str) -> Form:
        if isinstance(x, Mapping):
            return _dict_form({key: self.form(child, f"{name}[{key!r}]") for key, child in x.items()})
        if isinstance(x, (tuple, list)):
            # Other subclasses become the plain type, because their constructors may take anything.
            kind: type = type(x) if hasattr(x, "_fields") else list if isinstance(x, list) else tuple
            return Container(kind, tuple(self.form(child, f"{name}[{i}]") for i, child in enumerate(x)))
        # Before `is_array`, which NumPy's scalars satisfy too.
        if isinstance(x, np.generic):
            return PassedObject(x.item())  # NumPy's numbers and flags are numbers and flags
        if is_array(x):
            # An array that is passed twice stays one object, because models ask `query is key`.
            if id(x) not in self.slots:
                self.arrays[name] = self.as_array(x, _label(name))
                self.slots[id(x)] = x, ArraySlot(name)
            return self.slots[id(x)][1]
        if not self.any_object and not isinstance(x, CONSTANTS):
            kind_name = f"{type(x).__module__}.{type(x).__qualname__}"
            raise TypeError(
                f"parity: {_label(name)} is a {kind_name}, not an array of numbers, and no None, number or "
                "text. Objects that are passed as they are go to torch_kwargs and flax_kwargs."
            )
        return PassedObject(x)


def _label(name: str) -> str:
    """As errors show it: inputs[0], inputs['mask']."""
    root, bracket, suffix = name.partition("[")
    return f"inputs[{root if root.isdigit() else repr(root)}]{bracket}{suffix}"


def _dict_form(forms: Mapping[Any, Form]) -> Container:
    return Container(dict, tuple(forms.values()), tuple(forms))


def _filled(form: Form, arrays: Mapping[str, Any]) -> Any:
    if isinstance(form, ArraySlot):
        return arrays[form.name]
    if isinstance(form, PassedObject):
        return form.value
    children = [_filled(child, arrays) for child in form.children]
    if form.kind is dict:
        return dict(zip(form.keys, children, strict=True))
    return form.kind(*children) if hasattr(form.kind, "_fields") else form.kind(children)


def _map_objects(form: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(form, Container):
        children = tuple(_map_objects(child, function) for child in form.children)
        return Container(form.kind, children, form.keys)
    return PassedObject(function(form.value)) if isinstance(form, PassedObject) else form


def _leaves(form: Form) -> Iterator[ArraySlot | PassedObject]:
    if isinstance(form, Container):
        for child in form.children:
            yield from _leaves(child)
    else:
        yield form


# ---------------------------------------------------------------------------------- forms in a record's .json


def form_to_json(form: Arguments) -> list[Any]:
    """For objects that are not plain values, only the type's name is stored."""
    return [_to_json(form.args), _to_json(form.kwargs)]


def form_from_json(data: Any) -> Arguments:
    try:
        args, kwargs = map(_from_json, data)
        return Arguments(args, kwargs)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is no form of a call: {data!r}") from error


def _to_json(form: Form) -> Any:
    if isinstance(form, ArraySlot):
        return {"array": form.name}
    if isinstance(form, PassedObject):
        value = form.value
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": repr(value)}
        plain = value is None or type(value) in (bool, int, float, str)
        return {"value": value} if plain else {"given": type(value).__name__}
    children = [_to_json(child) for child in form.children]
    if form.kind is dict and all(type(key) in (str, int) for key in form.keys):
        return {"dict": [list(pair) for pair in zip(form.keys, children, strict=True)]}
    if form.kind in (tuple, list):
        return {form.kind.__name__: children}
    return {"given": form.kind.__name__}


def _from_json(data: Any) -> Any:
    ((tag, value),) = data.items()
    if tag == "array":
        return ArraySlot(str(value))
    if tag == "dict":
        return _dict_form({key: _from_json(child) for key, child in value})
    if tag in ("tuple", "list"):
        return Container(tuple if tag == "tuple" else list, tuple(map(_from_json, value)))
    return PassedObject({"value": lambda x: x, "float": float, "given": Missing}[tag](value))


@dataclass(frozen=True)
class Missing:
    kind: str


def not_passed(
    function: Callable[..., Any], args: tuple, kwargs: Mapping[str, Any]
) -> list[inspect.Parameter]:
    """Return the parameters of a user's function for which a call has no argument."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_filename.startswith(libraries()):
        return []
    try:
        signature = inspect.signature(function)
        passed = signature.bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):  # a call that the model refuses
        return []
    return [parameter for name, parameter in signature.parameters.items() if name not in passed]
