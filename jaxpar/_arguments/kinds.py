"""What an annotation accepts: numbers of NumPy and JAX are numbers, and any sequence is a list or a tuple."""

from __future__ import annotations

import collections.abc
import contextlib
import enum
import math
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias

Accepts: TypeAlias = Callable[[Any], bool]


LIBRARIES = {"numpy", "jax", "jaxlib", "ml_dtypes", "jaxpar", "flax", "optax"}
"""The packages whose code runs inside of a call, besides Python's and the user's."""


class Mark(enum.Enum):
    """The meanings of marks in `Annotated[type, mark]`."""

    EXPLAINED = "the function itself refuses other types, and its text explains more"
    INFINITE = "infinity means something there; any other float is finite"
    NAN = "NaN means something there, too"
    FINITE = "an array with NaN or infinity is refused"
    FLOATING = "an array of integers or booleans is refused, with torch's class"


EXPLAINED, INFINITE, NAN, FINITE, FLOATING = Mark


class Least(NamedTuple):
    """A bound of `Annotated[int, Least(1)]`: the number or more, and no bool; otherwise the error."""

    bound: float
    error: type[Exception] = ValueError


Count: TypeAlias = Annotated[int, Least(0)]
Positive: TypeAlias = Annotated[int, Least(1)]
Size: TypeAlias = Annotated[int, Least(0, RuntimeError)]  # torch's class
NonNegative: TypeAlias = Annotated[float, Least(0)]
Limit: TypeAlias = Annotated[float, Least(0), INFINITE]
Extended: TypeAlias = Annotated[float, INFINITE]
AnyFloat: TypeAlias = Annotated[float, NAN]


def unaliased(annotation: Any) -> Any:
    """Return what a `type` statement names: NumPy's DTypeLike is one on Python 3.12."""
    is_alias = type(annotation).__name__ == "TypeAliasType"
    return annotation.__value__ if is_alias else annotation


def accepts_of(annotation: Any, *, bounded: bool = True) -> Accepts | None:
    """Return the check of a type, or None if it accepts everything; unbounded, of the type alone."""
    annotation = unaliased(annotation)
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _annotated(annotation, bounded)
    if origin in (typing.Union, types.UnionType):
        checks = [accepts_of(member, bounded=bounded) for member in members]
        if any(getattr(member, "__name__", "").endswith(("SupportsDType", "HasDType")) for member in members):
            checks = [_is_dtype, *(_is_none for member in members if member is types.NoneType)]
        if float in map(_without_marks, members) and complex not in members:
            checks = [_is_no_number_but_array if check is is_array else check for check in checks]
        if bounded and any(map(_is_path_type, members)):
            paths = [kind is str or _is_path_type(kind) for kind in members]
            checks = [_is_path if named else check for named, check in zip(paths, checks, strict=True)]
        return None if None in checks else _either([check for check in checks if check is not None])
    if origin is typing.Literal:
        return lambda value: type(value) in set(map(type, members))  # the function checks the value
    kind = origin or annotation
    if kind in _CONTAINERS:
        return _container(kind, members, bounded)
    if kind is float:
        return _is_finite if bounded else _is_number
    if kind is Any or kind is object:
        return None
    if kind in _KINDS:
        return _KINDS[kind]
    if is_array_type(kind):
        return is_array
    if not isinstance(kind, type):
        return None
    if getattr(kind, "_is_protocol", False):
        methods = [name for name in vars(kind) if not name.startswith("_")]
        return lambda value: all(hasattr(value, name) for name in methods)
    return lambda value: isinstance(value, kind)


def _either(checks: list[Accepts]) -> Accepts:
    def accepts(value: Any) -> bool:
        for check in checks:  # noqa: SIM110, because `any` takes three times as long
            if check(value):
                return True
        return False

    return accepts


def _annotated(annotation: Any, bounded: bool) -> Accepts | None:
    kind, *marks = typing.get_args(annotation)
    accepts = accepts_of(kind, bounded=bounded and INFINITE not in marks and NAN not in marks)
    if EXPLAINED in marks or accepts is None:
        return None
    if FLOATING in marks:
        return accepts if not bounded else lambda value: accepts(value) and not _is_integer_array(value)
    if FINITE in marks:
        return accepts if not bounded else lambda value: accepts(value) and _has_finite_elements(value)
    least = least_of(annotation)
    if not bounded or NAN in marks:
        return accepts if least is None else lambda value: not isinstance(value, bool) and accepts(value)
    bound = -math.inf if least is None else least.bound

    def is_within(value: Any) -> bool:
        if least is not None and isinstance(value, bool):
            return False
        try:
            return accepts(value) and bool(value >= bound)
        except TypeError:  # a traced number
            return True

    return is_within


def _container(kind: Any, members: tuple[Any, ...], bounded: bool) -> Accepts:
    is_kind = _CONTAINERS[kind]
    checks = [accepts_of(member, bounded=bounded) for member in members if member is not ...]
    if kind is tuple and checks and ... not in members:
        return lambda value: (
            is_kind(value)
            and len(value) == len(checks)
            and all(check is None or check(member) for check, member in zip(checks, value, strict=True))
        )
    if len(checks) == 2:
        keys, values = checks
        return lambda value: (
            is_kind(value)
            and all((keys is None or keys(key)) and (values is None or values(value[key])) for key in value)
        )
    check = checks[0] if checks else None
    if check is None:
        return is_kind
    # One text is a sequence of texts, and never what was meant: its letters.
    no_text = kind is not collections.abc.Iterable and str in members
    # Other iterables are read by the function only: reading may take a batch, or draw a number.
    return lambda value: (
        is_kind(value) and not (no_text and isinstance(value, str)) and all(map(check, _members(value)))
    )


def _members(value: Any) -> Any:
    """Return the members that a check may read: all of a list, the first of an array."""
    if isinstance(value, (list, tuple, set, frozenset, str)):
        return value
    return value[:1] if getattr(value, "shape", ()) else ()


def _is_none(value: Any) -> bool:
    return value is None


def _is_whole(value: Any) -> bool:
    if isinstance(value, int):
        return value.bit_length() <= 64
    return hasattr(type(value), "__index__") and _has_kind(value, "biu")


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or _is_whole(value) or _has_kind(value, "biufV")


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return _is_number(value) and _has_finite_elements(value)


def _has_finite_elements(value: Any) -> bool:
    """Whether no element is NaN or infinite.

    True for elements that are traced or on other hosts, which cannot be read, and for those that a device is
    computing: a check does not wait.
    """
    import numpy as np  # `import jaxpar` does not load JAX or NumPy

    if getattr(getattr(value, "dtype", None), "kind", "i") in "biu":
        return True
    try:
        if hasattr(value, "is_ready") and not value.is_ready():
            return True
        return bool(np.isfinite(np.asarray(value)).all())
    except (TypeError, RuntimeError):
        return True


def _is_bool(value: Any) -> bool:
    return value is True or value is False or _has_kind(value, "b") or (_is_whole(value) and value in (0, 1))


def _has_kind(value: Any, kinds: str) -> bool:
    """Whether it is a number of NumPy or JAX, also a traced one."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    return kind is not None and kind in kinds and getattr(value, "shape", None) == ()


def is_array(value: Any) -> bool:
    kind = type(value)
    if kind in _ARRAYS or isinstance(value, (int, float, complex)):
        return True
    if isinstance(
        value, (list, tuple)
    ):  # losses take lists; JAX's own functions refuse them with a clear text
        return bool(value) and all(map(is_array, value))
    if not hasattr(value, "shape") or getattr(getattr(value, "dtype", None), "kind", "V") in "OSUMm":
        return False
    if kind.__module__.startswith("jax"):
        _ARRAYS.add(kind)  # its arrays hold numbers only
    return hasattr(value, "dtype")


def is_tensor(value: Any) -> bool:
    """Whether it is one array, and not a list or a number of Python's that could become one."""
    return hasattr(value, "dtype") and is_array(value)


def _is_integer_array(value: Any) -> bool:
    return getattr(getattr(value, "dtype", None), "kind", None) in ("b", "i", "u")


def _is_no_number_but_array(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) or getattr(value, "shape", None) == ()
    return not is_number and is_array(value)


def _is_path(value: Any) -> bool:
    """Whether it is a path that a system can have: not empty, and without NUL."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return isinstance(value, str) and value != "" and "\0" not in value


def _is_path_type(kind: Any) -> bool:
    kind = typing.get_origin(kind) or kind
    return isinstance(kind, type) and issubclass(kind, os.PathLike)


def _without_marks(annotation: Any) -> Any:
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation


def is_array_type(kind: Any) -> bool:
    return getattr(_without_marks(kind), "__name__", "").rpartition(".")[2] in ("Array", "ndarray")


def _is_dtype(value: Any) -> bool:
    from jax import numpy  # `import jaxpar` does not load JAX

    is_array = hasattr(value, "shape") and not isinstance(value, type)  # np.float32 is a class with a shape
    if value is None or is_array or (isinstance(value, str) and not value.isidentifier()):
        return isinstance(value, numpy.dtype)
    with contextlib.suppress(TypeError):
        dtype = numpy.dtype(value)
        return bool(numpy.issubdtype(dtype, numpy.number) or dtype.kind == "b")
    return False


def _is_sequence(value: Any) -> bool:
    return (
        hasattr(value, "__len__")
        and hasattr(value, "__getitem__")
        and not isinstance(value, (Mapping, type, bytes))
        and getattr(value, "shape", None) != ()
    )


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__"))


def _is_iterable(value: Any) -> bool:
    return not isinstance(value, (type, bytes)) and hasattr(
        type(value), "__iter__" if not hasattr(type(value), "__getitem__") else "__getitem__"
    )


def error_class(annotation: Any) -> type[Exception]:
    """Return the class of the error for a value of the type that is out of its bounds."""
    least = least_of(annotation)
    return RuntimeError if is_floating(annotation) else ValueError if least is None else least.error


def least_of(annotation: Any) -> Least | None:
    """Return the bound of a type or of its members, or None."""
    return next((mark for mark in _parts(annotation) if isinstance(mark, Least)), None)


def is_bounded(annotation: Any) -> bool:
    """Whether a type excludes values of its kind before the call."""
    return least_of(annotation) is not None or is_floating(annotation) or FINITE in _parts(annotation)


def is_floating(annotation: Any) -> bool:
    return FLOATING in _parts(annotation)


def has_path(annotation: Any) -> bool:
    """Whether a type, or one of its members, is a path."""
    return any(map(_is_path_type, _parts(annotation)))


def limits(annotation: Any) -> str:
    """Describe the values of its type that an annotation excludes."""
    if has_path(annotation):
        return "a path, neither empty nor with NUL"
    parts, least = list(_parts(annotation)), least_of(annotation)
    if is_floating(annotation):
        return "an array of floating-point numbers; x.astype(jnp.float32) makes one of it"
    is_finite = FINITE in parts or (float in parts and INFINITE not in parts)
    bounds = ["finite"] if is_finite else []
    bounds += [] if least is None else [f"{least.bound:g} or more"]
    return " and ".join(bounds) or "a number"


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield an annotation, its members and their marks."""
    yield annotation
    for member in typing.get_args(annotation):
        yield from _parts(member)


_ARRAYS: set[type] = set()
_KINDS: dict[Any, Accepts] = {
    int: _is_whole,
    typing.SupportsIndex: _is_whole,
    bool: _is_bool,
    types.NoneType: _is_none,
    None: _is_none,
    collections.abc.Callable: callable,
}
_CONTAINERS: dict[Any, Accepts] = {
    list: _is_sequence,
    tuple: _is_sequence,
    collections.abc.Sequence: _is_sequence,
    dict: _is_mapping,
    collections.abc.Mapping: _is_mapping,
    collections.abc.Iterable: _is_iterable,
    collections.abc.Sized: lambda value: hasattr(value, "__len__"),
}


def described(annotation: Any) -> str:
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return described(members[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(described, members)))
    if origin is typing.Literal:
        return " or ".join(map(repr, members))
    kind = origin or annotation
    if kind is types.NoneType or kind is None:
        return "None"
    if kind is collections.abc.Callable:
        return "a function"
    if is_array_type(kind):
        return "an array"
    name: str = getattr(kind, "__name__", str(kind))
    if kind in _CONTAINERS and members:
        name += f"[{', '.join('...' if member is ... else described(member) for member in members)}]"
    return name
