"""Python objects as tagged JSON, without pickle.

A received pickle can run any code, and torch sends pickles. This format holds data only: None, booleans,
numbers, strings, bytes, arrays, and lists, tuples, dicts and sets of these. Types survive the round trip: a
tuple stays a tuple, and a dict keeps its order and its keys.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import LeafError

PLAIN = (type(None), bool, int, float, str)
DEEPEST = 200
"""Maximum nesting depth. It also ends the recursion of a list that contains itself."""


def to_text(obj: object, name: str, allow_pickle: bool) -> str:
    """Serialize an object.

    >>> from jaxpar.distributed._object_text import to_text
    >>> to_text((1, "a"), "pair", allow_pickle=False)
    '{"tuple":[1,"a"]}'

    Args:
      name: the object's name in errors.
      allow_pickle: whether objects of unsupported types are pickled.

    Raises:
      LeafError: an object has an unsupported type, cannot be pickled, or is nested too deep.
    """
    try:
        return json.dumps(_packed(obj, name, allow_pickle, DEEPEST), separators=(",", ":"))
    except LeafError:
        raise
    except Exception as error:  # a pickle runs the object's own code, and ints of 4300 digits have no text
        raise LeafError(f"{name} cannot be sent: {type(error).__name__}: {error}") from error


def from_text(text: str, allow_pickle: bool) -> Any:
    """Deserialize an object. Never runs code from the text, unless `allow_pickle`."""
    return _unpacked(json.loads(text), allow_pickle)


def _packed(x: Any, name: str, allow_pickle: bool, depth: int) -> Any:
    if not depth:
        raise LeafError(
            f"{name}: more than {DEEPEST} levels of lists, tuples and dicts, or one inside itself."
        )

    def pack_items(values: Any, label: Callable[[int], str] = lambda i: f"[{i}]") -> list:
        return [_packed(v, name + label(i), allow_pickle, depth - 1) for i, v in enumerate(values)]

    kind = type(x)  # a subclass may have attributes that JSON loses
    if kind in PLAIN:
        return x
    if kind is list:
        return pack_items(x)
    # Every container but a list is tagged, dicts included, so a user's dict cannot imitate a tag.
    if kind in (tuple, set, frozenset):
        return {kind.__name__: pack_items(x)}
    if kind is dict:
        keys = list(x)
        return {
            "dict": [
                pack_items(keys, lambda i: f" key {keys[i]!r}"),
                pack_items(x.values(), lambda i: f"[{keys[i]!r}]"),
            ]
        }
    if kind is complex:
        return {"complex": [x.real, x.imag]}
    if kind is bytes:
        return {"bytes": _base64(x)}
    if isinstance(x, jax.Array):
        return _packed_array(x, name)
    if kind is np.ndarray and not _needs_pickle(x.dtype):
        return {"ndarray": _contents(x)}
    if isinstance(x, np.generic) and not _needs_pickle(x.dtype):
        return {"scalar": _contents(np.asarray(x))}
    if allow_pickle:
        return {"pickle": _base64(pickle.dumps(x))}
    raise LeafError(
        f"{name} is a {kind.__module__}.{kind.__qualname__}, which only pickle can send. Send numbers, "
        "texts, lists, tuples, dicts, sets and arrays; or pass allow_pickle=True on all ranks, if you trust "
        "whoever can reach rank 0's port."
    )


def _packed_array(x: jax.Array, name: str) -> dict[str, Any]:
    if not x.is_fully_addressable:
        raise LeafError(f"{name} lies on devices of other processes too; send this process's part of it.")
    if x.is_deleted():
        raise LeafError(f"{name} was donated or deleted.")
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return {"key": [str(jax.random.key_impl(x)), *_contents(np.asarray(jax.random.key_data(x)))]}
    return {"Array": _contents(np.asarray(x))}


def _needs_pickle(dtype: np.dtype) -> bool:
    """Whether the dtype's name does not describe it fully: objects and structured dtypes."""
    return dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None


def _contents(x: np.ndarray) -> list:
    # The `str` of an ml_dtypes dtype is ambiguous (bfloat16 is "<V2"), and `name` loses the byte order.
    dtype = x.dtype.name if x.dtype.isnative and x.dtype.kind not in "SUmM" else x.dtype.str
    return [dtype, list(x.shape), _base64(np.ascontiguousarray(x).tobytes())]


def _array(dtype: str, shape: list[int], data: str) -> np.ndarray:
    # A bytearray, because arrays over immutable bytes are read-only.
    return np.frombuffer(bytearray(base64.b64decode(data)), jnp.dtype(dtype)).reshape(shape)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unpacked(x: Any, allow_pickle: bool) -> Any:
    if isinstance(x, list):
        return [_unpacked(value, allow_pickle) for value in x]
    if not isinstance(x, dict):
        return x
    ((tag, value),) = x.items()
    if tag == "pickle" and not allow_pickle:
        raise LeafError("a pickle came from a rank that had not said so; nothing was loaded from it.")
    if tag in _VALUES:
        return _VALUES[tag](value)
    return _CONTAINERS[tag](_unpacked(value, allow_pickle))


_CONTAINERS: dict[str, Callable[[list], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": lambda pairs: dict(zip(*pairs, strict=True)),
}
_VALUES: dict[str, Callable[[Any], Any]] = {
    "complex": lambda parts: complex(*parts),
    "bytes": base64.b64decode,
    "ndarray": lambda fields: _array(*fields),
    "scalar": lambda fields: _array(*fields)[()],
    "Array": lambda fields: jnp.asarray(_array(*fields)),
    "key": lambda fields: jax.random.wrap_key_data(jnp.asarray(_array(*fields[1:])), impl=fields[0]),
    "pickle": lambda data: pickle.loads(base64.b64decode(data)),
}
