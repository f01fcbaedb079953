"""Python values as tagged JSON, without pickle, so that reading one cannot run code.

Every type survives the round trip: a tuple stays a tuple, and a dict keeps its order and its keys. The state
in checkpoints and the objects that ranks send differ in the further types that they accept, by a rule each.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

Json: TypeAlias = Any
"""What `json.loads` returns, which has no better type."""

Nested: TypeAlias = "Callable[[Any, str], Json]"
"""Encodes a value within a value, under its name."""

PLAIN = (type(None), bool, int, float, str)


class NestedTooDeepError(ValueError):
    """The levels are used up; the text is the value's name."""


def encode(
    value: Any,
    name: str,
    rule: Callable[[Any, str, Nested], Json],
    *,
    key_name: str = "{name} key {key!r}",
    levels: int = -1,
) -> Json:
    """Encode a value as JSON.

    `rule` encodes a value of a further type, or raises, and gets the name for the error; `key_name` formats a
    dict key's name. `levels` limits the nesting, unless it is negative.
    """
    if not levels:
        raise NestedTooDeepError(name)

    def nested(inner: Any, inner_name: str) -> Json:
        return encode(inner, inner_name, rule, key_name=key_name, levels=levels - 1)

    # Exact types: a subclass such as IntEnum or np.float64 would be decoded as its base class.
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is bytes:
        return {"bytes": base64_text(value)}
    # Lists and dicts are tagged too, so a user's dict cannot imitate a tag; JSON has string keys only.
    if kind in (list, tuple):
        return {kind.__name__: [nested(part, f"{name}[{i}]") for i, part in enumerate(value)]}
    if kind is dict:
        return {
            "dict": [
                [nested(k, key_name.format(name=name, key=k)), nested(v, f"{name}[{k!r}]")]
                for k, v in value.items()
            ]
        }
    return rule(value, name, nested)


def decode(text: Json, rules: Mapping[str, Callable[[Any], Any]]) -> Any:
    """Decode a value that `encode` wrote. `rules` are functions of the JSON under a tag, and come first."""
    if isinstance(text, dict) and (tag := next(iter(text), "")) in rules:
        return rules[tag](text[tag])
    match text:
        case {"bytes": data}:
            return base64.b64decode(data)
        case {"key": impl, "data": data}:
            return jax.random.wrap_key_data(jnp.asarray(decode_array(data)), impl=impl)
        case {"scalar": data}:
            return decode_array(data)[()]
        case {"array": data}:
            return decode_array(data)
        case {"dict": pairs}:
            return {decode(k, rules): decode(v, rules) for k, v in pairs}
        case {"list": parts}:
            return [decode(part, rules) for part in parts]
        case {"tuple": parts}:
            return tuple(decode(part, rules) for part in parts)
        case dict() | list():
            raise ValueError(f"it has {str(text)[:60]}, which is not a kind of value")
    return text


def encode_key(x: jax.Array) -> Json:
    return {"key": str(jax.random.key_impl(x)), "data": encode_array(jax.random.key_data(x))}


def encode_array(x: jax.Array | np.ndarray | np.generic) -> Json:
    """Return dtype, shape and bytes, in the array's byte order."""
    array = np.asarray(x)
    # The `str` of an ml_dtypes dtype is ambiguous (bfloat16 is "<V2"), and `name` loses the byte order.
    dtype = array.dtype.name if array.dtype.isnative and array.dtype.kind not in "SU" else array.dtype.str
    data = np.ascontiguousarray(array).tobytes()
    return {"dtype": dtype, "shape": list(array.shape), "data": base64_text(data)}


def decode_array(text: Json) -> np.ndarray:
    # A bytearray, because arrays over immutable bytes are read-only. reshape refuses a shape that does not
    # match the bytes, so no shape can cause a larger allocation.
    flat = np.frombuffer(bytearray(base64.b64decode(text["data"])), dtype_of(text["dtype"]))
    return flat.reshape(text["shape"])


def is_key(value: Any) -> bool:
    """Return whether a value is an array of typed random keys."""
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def dtype_of(name: str) -> np.dtype:
    """Return the dtype with a name, including the names that ml_dtypes adds, such as bfloat16."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode()
