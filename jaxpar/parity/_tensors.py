"""Convert torch tensors to NumPy arrays and back, bit for bit and without copies; imports torch on demand."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import FileError

SIZED = {1: "uint8", 2: "int16"}  # by item size: through which tensors pass whose dtype NumPy lacks


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def array_of(tensor: Any) -> np.ndarray:
    """Return a tensor's values as an array, which shares memory with a CPU tensor, or raise TypeError."""
    import torch

    tensor = tensor.detach()
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        kind = "quantized" if tensor.is_quantized else tensor.layout
        raise TypeError(f"it has no plain values ({kind}, on {tensor.device})")
    # torch conjugates and negates lazily, by a flag of the tensor, which NumPy does not have.
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if hasattr(ml_dtypes, name):
        # NumPy cannot receive bfloat16 from torch, and a view of strided memory must keep the item size.
        return tensor.view(getattr(torch, SIZED[tensor.itemsize])).numpy().view(getattr(ml_dtypes, name))
    return tensor.numpy()


def widened(array: np.ndarray) -> np.ndarray:
    """Cast to float64 or complex128; returns the array itself if it has that dtype."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64, copy=False)


def tensor_of(array: np.ndarray) -> Any:
    """Return a tensor that shares memory with the array, which must be writable."""
    import torch

    name = array.dtype.name
    if hasattr(ml_dtypes, name):
        bits = torch.from_numpy(array.view(SIZED[array.itemsize]))
        return bits.view(getattr(torch, name))
    return torch.from_numpy(array)


def array_from(path: str, name: str, value: Any) -> np.ndarray:
    """Convert a value to an array to write, without a copy where possible; raises FileError."""
    try:
        array = array_of(value) if is_tensor(value) else np.asarray(value)
        if not hasattr(value, "dtype"):  # a number or a list, which would come back as an array
            raise TypeError(f"{type(value).__name__} is no array")
    except (TypeError, ValueError, RuntimeError) as error:
        raise FileError(f"{path}: {name} cannot be written: {error}.") from error
    if array.dtype.kind in "OSUMmV" and array.dtype.name == array.dtype.str.strip("|"):
        raise FileError(f"{path}: {name} is {type(value).__name__}, not numbers.")
    # torch refuses arrays in a foreign byte order.
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def tensor_from(path: str, name: str, value: Any) -> Any:
    """Return a tensor to write; a copy unless the value is a tensor."""
    if is_tensor(value):
        return value.detach().cpu()
    array = np.array(array_from(path, name, value), order="C")
    try:
        return tensor_of(array)
    except TypeError as error:
        raise FileError(f"{path}: {name} is {array.dtype}, which torch does not know.") from error
