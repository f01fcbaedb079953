"""The rule of `distributed.tagged_json` for small values in checkpoints, such as loaders' state dicts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

import jax
import numpy as np

from .._typing import PyTree
from ..distributed import tagged_json
from ..distributed.tagged_json import Json, Nested, decode_array, dtype_of, is_key
from ..errors import CheckpointError

Array: TypeAlias = "jax.Array | np.ndarray"

LARGE = 1 << 16
"""Bytes from which an array in a state dict becomes a file of its own. As base64 it would take a third
more and, with several processes, travel through the coordinator."""


def encode(value: PyTree, item: str, path: str = "", large: dict[str, Array] | None = None) -> Json:
    """Encode a value as JSON, or raise a CheckpointError that names it `item: path`.

    Arrays of at least LARGE bytes are added to `large` under their path, and the JSON only refers to them.
    """

    def rule(value: PyTree, path: str, nested: Nested) -> Json:
        if isinstance(value, bytes):
            return nested(bytes(value), path)
        if isinstance(value, dict):
            return nested(dict(value.items()), path)
        if is_key(value):
            return tagged_json.encode_key(value)
        if isinstance(value, np.generic) and is_storable(value):
            return {"scalar": _encode_array(value)}
        if isinstance(value, (jax.Array, np.ndarray)) and is_storable(value):
            if large is None or value.nbytes < LARGE:
                return {"array": _encode_array(value)}
            large[path] = value
            return {"array": {"leaf": path}}
        # A torch tensor can only exist if torch is loaded; importing it would take seconds.
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return {"tensor": _encode_array(value.detach().cpu().numpy())}
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if isinstance(value, np.ndarray):
            kind = f"{type(value).__name__} of {value.dtype}"
        raise CheckpointError(
            f"Checkpointer.save: {item}{': ' * bool(path)}{path} is a {kind}. Arrays, numbers, texts, "
            "bytes and dicts, lists and tuples of these can be saved; nothing is pickled."
        )

    return tagged_json.encode(value, path, rule, key_name="{name}")


def decode(text: Json, large: Mapping[str, object] = MappingProxyType({})) -> PyTree:
    """Decode a value that `encode` wrote; `large` holds the arrays that the JSON refers to."""

    def tensor(data: Json) -> PyTree:
        torch = sys.modules.get("torch")
        return decode_array(data) if torch is None else torch.from_numpy(decode_array(data))

    def array(data: Json) -> PyTree:
        return large[data["leaf"]] if "leaf" in data else decode_array(data)

    return tagged_json.decode(text, {"array": array, "tensor": tensor})


def is_storable(array: Array | np.generic) -> bool:
    """Return whether bytes, shape and dtype name determine the array: no objects, structures, masks."""
    try:
        named = dtype_of(array.dtype.name) == array.dtype.newbyteorder("=")
        return named and not array.dtype.hasobject and not isinstance(array, np.ma.MaskedArray)
    except TypeError:
        return False


def native(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def flat_bytes(array: np.ndarray) -> np.ndarray:
    return native(array).reshape(-1).view(np.uint8)


def _encode_array(value: Array | np.generic) -> Json:
    array = np.asarray(value)
    return tagged_json.encode_array(native(array).reshape(array.shape))
