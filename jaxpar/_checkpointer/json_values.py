"""Small values as JSON: numbers, strings, random keys, and state dicts of loaders and generators.

Nothing is pickled, so reading a checkpoint cannot run code. Every value is restored with its exact type, or
refused when it is saved. torch pickles, and `torch.load` needs `weights_only` to be safe.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from .._typing import PyTree
from ..errors import CheckpointError

Json: TypeAlias = Any
"""What `json.loads` returns, which has no better type."""

Array: TypeAlias = "jax.Array | np.ndarray"

LARGE = 1 << 16
"""Bytes from which an array in a state dict becomes a file of its own. As base64 it would take a third
more and, with several processes, travel through the coordinator."""


def encode(value: PyTree, item: str, path: str = "", large: dict[str, Array] | None = None) -> Json:
    """Encode a value as JSON; errors name it `item: path`.

    Arrays of at least LARGE bytes are added to `large` under their path, and the JSON only refers to them.

    Raises:
      CheckpointError: the value has no exact JSON form.

    >>> encode({"epoch": 3, "done": (True, None)}, "state")
    {'dict': [['epoch', 3], ['done', {'tuple': [True, None]}]]}
    """
    # Exact types: a subclass such as IntEnum or np.float64 would be restored as its base class.
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, bytes):
        return {"bytes": _text(value)}
    if is_key(value):
        return {"key": str(jax.random.key_impl(value)), "data": _inline(jax.random.key_data(value))}
    if isinstance(value, np.generic) and is_storable(value):
        return {"scalar": _inline(value)}
    if isinstance(value, (jax.Array, np.ndarray)) and is_storable(value):
        if large is None or value.nbytes < LARGE:
            return {"array": _inline(value)}
        large[path] = value
        return {"array": {"leaf": path}}
    # A torch tensor can only exist if torch is loaded; importing it would take seconds.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return {"tensor": _inline(value.detach().cpu().numpy())}
    # Pairs, because JSON objects only have string keys.
    if isinstance(value, dict):
        pairs = value.items()
        return {"dict": [[encode(k, item, path), encode(v, item, f"{path}[{k!r}]", large)] for k, v in pairs]}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return {type(value).__name__: [encode(v, item, f"{path}[{i}]", large) for i, v in enumerate(value)]}
    raise CheckpointError(
        f"Checkpointer.save: {item}{': ' * bool(path)}{path} is a {_kind(value)}. Arrays, numbers, texts, "
        "bytes and dicts, lists and tuples of these can be saved; nothing is pickled."
    )


def decode(text: Json, large: Mapping[str, object] = MappingProxyType({})) -> PyTree:
    """Decode a value that `encode` wrote; `large` holds the arrays that the JSON refers to.

    >>> decode({"tuple": [1, {"bytes": "AAE="}]}) == (1, bytes([0, 1]))
    True
    """
    match text:
        case {"bytes": data}:
            return base64.b64decode(data)
        case {"key": impl, "data": data}:
            return jax.random.wrap_key_data(jnp.asarray(_array(data)), impl=impl)
        case {"scalar": data}:
            return _array(data)[()]
        case {"array": {"leaf": path}}:
            return large[path]
        case {"array": data}:
            return _array(data)
        case {"tensor": data}:
            torch = sys.modules.get("torch")
            return _array(data) if torch is None else torch.from_numpy(_array(data))
        case {"dict": pairs}:
            return {decode(k): decode(v, large) for k, v in pairs}
        case {"list": parts}:
            return [decode(part, large) for part in parts]
        case {"tuple": parts}:
            return tuple(decode(part, large) for part in parts)
        case dict() | list():
            raise ValueError(f"it has {str(text)[:60]}, which is not a kind of value")
    return text


def is_key(value: PyTree) -> bool:
    """Return whether a value is an array of typed random keys."""
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def is_storable(array: Array | np.generic) -> bool:
    """Return whether bytes, shape and dtype name determine the array.

    This excludes object arrays, structured dtypes and masked arrays.
    """
    try:
        named = dtype_of(array.dtype.name) == array.dtype.newbyteorder("=")
        return named and not array.dtype.hasobject and not isinstance(array, np.ma.MaskedArray)
    except TypeError:
        return False


def dtype_of(name: str) -> np.dtype:
    """Return the dtype with a name, including the names that ml_dtypes adds, such as bfloat16."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def flat_bytes(array: np.ndarray) -> np.ndarray:
    """Return the array's bytes in C order and native byte order, as a view where possible."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1).view(np.uint8)


def _inline(value: Array | np.generic) -> Json:
    array = np.asarray(value)
    data = flat_bytes(array).tobytes()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": _text(data)}


def _array(text: Json) -> np.ndarray:
    # reshape refuses a shape that does not match the bytes, so no shape can cause a larger allocation.
    flat = np.frombuffer(bytearray(base64.b64decode(text["data"])), dtype_of(text["dtype"]))
    return flat.reshape(text["shape"])


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{type(value).__name__} of {value.dtype}"
    return f"{type(value).__module__}.{type(value).__qualname__}"
