"""Small values as JSON: numbers, texts, random keys, the state dicts of loaders and generators.

No pickle: what is read can only be one of these. Every value comes back as what it was; whatever
would not is refused.
"""

from __future__ import annotations

import base64
import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from ..errors import CheckpointError


def encode(value: Any, where: str) -> Any:
    """JSON for a value; `where` is its path, for the error.

    Raises:
      CheckpointError: neither array, number, text, bytes, None nor a dict, list or tuple of these.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, bytes):
        return {"bytes": _text(value)}
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = _array(np.asarray(jax.random.key_data(value)))
        return {"key": str(jax.random.key_impl(value)), "dtype": str(value.dtype), "data": data}
    if isinstance(value, np.generic):
        return {"scalar": _array(np.asarray(value))}
    if isinstance(value, (jax.Array, np.ndarray)) and value.dtype != object:
        return {"array": _array(np.asarray(value))}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return {"tensor": _array(value.detach().cpu().numpy())}
    if isinstance(value, dict):
        pairs = [[encode(k, where), encode(v, f"{where}[{k!r}]")] for k, v in value.items()]
        return {"dict": pairs}
    if type(value) in (list, tuple):
        parts = [encode(v, f"{where}[{i}]") for i, v in enumerate(value)]
        return {type(value).__name__: parts}
    raise CheckpointError(
        f"Checkpointer.save: {where} is a {type(value).__module__}.{type(value).__qualname__}. Arrays, "
        "numbers, texts, bytes and dicts, lists and tuples of these can be saved; nothing is pickled."
    )


def decode(text: Any) -> Any:
    """The value that `encode` wrote."""
    if not isinstance(text, dict):
        return text
    kind = next(iter(text))
    if kind not in READERS:
        raise ValueError(f"{kind!r} is no kind of value")
    return READERS[kind](text[kind], text)


def spec(text: Any) -> tuple[tuple[int, ...], str] | None:
    """The (shape, dtype) of what `encode` wrote, if it is an array or a random key."""
    if isinstance(text, dict) and "array" in text:
        return tuple(text["array"]["shape"]), text["array"]["dtype"]
    if isinstance(text, dict) and "key" in text:
        extra = jax.random.key_data(jax.random.key(0, impl=text["key"])).ndim
        shape = text["data"]["shape"]
        return tuple(shape[: len(shape) - extra]), text["dtype"]
    return None


def _array(array: np.ndarray) -> dict[str, Any]:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).tobytes()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": _text(data)}


def _of(text: dict[str, Any]) -> np.ndarray:
    """frombuffer refuses bytes that are not exactly the shape's, so no shape makes it allocate more."""
    flat = np.frombuffer(bytearray(base64.b64decode(text["data"])), dtype_of(text["dtype"]))
    return flat.reshape(text["shape"])


def _tensor(text: dict[str, Any], _: Any) -> Any:
    torch = sys.modules.get("torch")
    return _of(text) if torch is None else torch.from_numpy(_of(text))


READERS: dict[str, Any] = {
    "bytes": lambda text, _: base64.b64decode(text),
    "key": lambda impl, whole: jax.random.wrap_key_data(jnp.asarray(_of(whole["data"])), impl=impl),
    "scalar": lambda text, _: _of(text)[()],
    "array": lambda text, _: _of(text),
    "tensor": _tensor,
    "dict": lambda pairs, _: {decode(k): decode(v) for k, v in pairs},
    "list": lambda parts, _: [decode(part) for part in parts],
    "tuple": lambda parts, _: tuple(decode(part) for part in parts),
}


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
