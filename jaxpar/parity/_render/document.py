"""Convert a comparison to JSON and back; the document mirrors the dataclasses field by field."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias, TypeVar

from .._comparison_data import ComparisonData
from ..measuring import Number

R = TypeVar("R", bound=ComparisonData)
Json: TypeAlias = dict[str, Any] | list[Any] | str | int | float | None

FORMAT = "jaxpar.parity.Comparison"
VERSION = 1
# JSON has no NaN, infinity or complex numbers; the latter are objects with `real` and `imag`.
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def document(comparison: ComparisonData) -> dict[str, Any]:
    """Return plain values. `same` is the verdict, for readers without jaxpar."""
    head = {"format": FORMAT, "version": VERSION, "same": comparison.same}
    return head | _encoded(comparison)


def dumps(comparison: ComparisonData) -> str:
    """Return strict JSON in ASCII, one line per field and row."""
    lines = []
    for name, value in document(comparison).items():
        shown = _line(value)
        # One line per row, so that the difference of two documents in version control shows tensors.
        if name == "rows":
            shown = "[\n" + ",\n".join(map(_line, value)) + "\n]"
        lines.append(f'"{name}": {shown}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _line(value: Json) -> str:
    return json.dumps(value, allow_nan=False)


def loads(text: str, kind: type[R]) -> R:
    """Return the `kind` that `dumps` wrote, or raise a ValueError that names the offending element."""
    try:
        # Strict in both respects: Python's json accepts NaN, and silently keeps the last of two equal keys.
        content = json.loads(text, parse_constant=_no_such_number, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("comparison: the document is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"comparison: this is no JSON: {error}.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f'comparison: this is no comparison; its "format" is not "{FORMAT}".')
    if content.get("version") != VERSION:
        raise ValueError(
            f"comparison: the document has version {content.get('version')!r}, this jaxpar reads {VERSION}."
        )
    fields = {key: value for key, value in content.items() if key not in ("format", "version", "same")}
    decoded: R = _decoded(kind, fields, "comparison")
    # "same" is derived from the rows; two different verdicts mean that one of them was edited.
    if content.get("same") is not decoded.same:
        raise ValueError(f'comparison: "same" is {content.get("same")!r}, but its rows say {decoded.same}.')
    return decoded


def _encoded(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _encoded(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _encoded(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_encoded(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, complex):
        return {"real": _encoded(value.real), "imag": _encoded(value.imag)}
    return value


def _decoded(kind: Any, value: Json, path: str) -> Any:
    """Decode a value of the type `kind`; `path` is its location in the document, for errors."""
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, path)
    if typing.get_origin(kind) is tuple:
        return _tuple(typing.get_args(kind), value, path)
    if typing.get_origin(kind) is Mapping:
        return {key: _decoded(str, item, f"{path}.{key}") for key, item in _object(value, path).items()}
    if kind == Number:
        return _number(value, path)
    if typing.get_origin(kind) in (types.UnionType, typing.Union):  # something or None
        (some,) = (option for option in typing.get_args(kind) if option is not type(None))
        return None if value is None else _decoded(some, value, path)
    if issubclass(kind, enum.Enum):
        try:
            return kind(value)
        except ValueError:
            _wrong(path, value, " or ".join(repr(member.value) for member in kind))
    if kind is float:
        return _float(value, path)
    # Not isinstance, which accepts True where an int belongs.
    if type(value) is not kind:
        _wrong(path, value, kind.__name__)
    return value


def _dataclass(kind: Any, value: Json, path: str) -> Any:
    hints, fields = _hints(kind), _object(value, path)
    if fields.keys() != hints.keys():
        names = ", ".join(sorted(fields.keys() ^ hints.keys()))
        raise ValueError(f"{path}: missing or unknown: {names}.")
    return kind(**{name: _decoded(hints[name], fields[name], f"{path}.{name}") for name in hints})


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    # Cached, because the annotations are strings, and a document may have thousands of rows of one class.
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _tuple(kinds: tuple[Any, ...], value: Json, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        _wrong(path, value, "a list")
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        _wrong(path, value, f"a list of {len(kinds)}")
    return tuple(_decoded(k, v, f"{path}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))


def _object(value: Json, path: str) -> dict[str, Any]:
    return value if isinstance(value, dict) else _wrong(path, value, "an object")


def _float(value: Json, path: str) -> float:
    if isinstance(value, str) and value in NOT_FINITE:
        return NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _wrong(path, value, "a number")
    try:
        return float(value)
    except OverflowError:
        _wrong(path, value, "a number of float64")


def _number(value: Json, path: str) -> Number:
    # Integers stay integers: float64 would round an element of int64 above 2^53.
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, dict) and value.keys() == {"real", "imag"}:
        return complex(*(_float(value[part], f"{path}.{part}") for part in ("real", "imag")))
    return _float(value, path)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"comparison: twice in one object: {max(names, key=names.count)!r}.")
    return members


def _no_such_number(text: str) -> NoReturn:
    raise ValueError(f'comparison: JSON has no {text}; it is written as the text "{text}".')


def _wrong(path: str, value: Json, expected: str) -> NoReturn:
    shown = repr(value)
    raise ValueError(f"{path}: {shown if len(shown) < 60 else shown[:57] + '...'} is not {expected}.")
