"""The rule of `tagged_json` for objects that ranks send, of which a received pickle could run any code."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import LeafError
from .tagged_json import (
    Json,
    Nested,
    NestedTooDeepError,
    base64_text,
    decode,
    decode_array,
    encode,
    encode_array,
    encode_key,
    is_key,
)

DEEPEST = 200
"""Maximum nesting depth. It also ends the recursion of a list that contains itself."""


def to_text(obj: object, name: str, allow_pickle: bool) -> str:
    """Serialize an object; errors use `name`, and `allow_pickle` is for unsupported types.

    >>> from jaxpar.distributed._object_text import to_text
    >>> to_text((1, "a"), "pair", allow_pickle=False)
    '{"tuple":[1,"a"]}'

    Raises:
      LeafError: an object has an unsupported type, cannot be pickled, or is nested too deep.
    """
    try:
        encoded = encode(obj, name, partial(_encode_other, allow_pickle), levels=DEEPEST)
        return json.dumps(encoded, separators=(",", ":"))
    except LeafError:
        raise
    except NestedTooDeepError as error:
        raise LeafError(
            f"{error}: more than {DEEPEST} levels of lists, tuples and dicts, or one inside itself."
        ) from None
    except Exception as error:  # a pickle runs the object's own code, and ints of 4300 digits have no text
        raise LeafError(f"{name} cannot be sent: {type(error).__name__}: {error}") from error


def from_text(text: str, allow_pickle: bool) -> Any:
    """Deserialize an object. Never runs code from the text, unless `allow_pickle`."""

    def unpickle(data: str) -> Any:
        if not allow_pickle:
            raise LeafError("a pickle came from a rank that had not said so; nothing was loaded from it.")
        return pickle.loads(base64.b64decode(data))

    rules: dict[str, Callable[[Any], Any]] = {
        "set": lambda parts: {decode(part, rules) for part in parts},
        "frozenset": lambda parts: frozenset(decode(part, rules) for part in parts),
        "complex": lambda parts: complex(*parts),
        "Array": lambda data: jnp.asarray(decode_array(data)),
        "pickle": unpickle,
    }
    return decode(json.loads(text), rules)


def _encode_other(allow_pickle: bool, x: Any, name: str, nested: Nested) -> Json:
    kind = type(x)
    if kind in (set, frozenset):
        return {kind.__name__: [nested(part, f"{name}[{i}]") for i, part in enumerate(x)]}
    if kind is complex:
        return {"complex": [x.real, x.imag]}
    if isinstance(x, jax.Array):
        if not x.is_fully_addressable:
            raise LeafError(f"{name} lies on devices of other processes too; send this process's part of it.")
        if x.is_deleted():
            raise LeafError(f"{name} was donated or deleted.")
        return encode_key(x) if is_key(x) else {"Array": encode_array(x)}
    if kind is np.ndarray and not _needs_pickle(x.dtype):
        return {"array": encode_array(x)}
    if isinstance(x, np.generic) and not _needs_pickle(x.dtype):
        return {"scalar": encode_array(x)}
    if allow_pickle:
        return {"pickle": base64_text(pickle.dumps(x))}
    raise LeafError(
        f"{name} is a {kind.__module__}.{kind.__qualname__}, which only pickle can send. Send numbers, "
        "texts, lists, tuples, dicts, sets and arrays; or pass allow_pickle=True on all ranks, if you trust "
        "whoever can reach rank 0's port."
    )


def _needs_pickle(dtype: np.dtype) -> bool:
    """Whether the dtype's name does not describe it fully: objects and structured dtypes."""
    return dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None
