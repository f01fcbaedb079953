"""Arrays to write: from whatever holds numbers, or an error that names it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ...errors import FileError
from .._tensors import array_of, is_tensor, tensor_of


def array_from(path: str, name: str, value: Any) -> np.ndarray:
    """An array, without a copy where that is possible."""
    try:
        array = array_of(value) if is_tensor(value) else np.asarray(value)
        if not hasattr(value, "dtype"):  # a number or a list, which would come back as an array
            raise TypeError(f"{type(value).__name__} is no array")
    except (TypeError, ValueError, RuntimeError) as error:
        raise FileError(f"{path}: {name} cannot be written: {error}.") from error
    if array.dtype.kind in "OSUMmV" and array.dtype.name == array.dtype.str.strip("|"):
        raise FileError(f"{path}: {name} is {type(value).__name__}, not numbers.")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def tensor_from(path: str, name: str, value: Any) -> Any:
    """A torch tensor, on memory of its own unless it is one already."""
    if "torch" in sys.modules and is_tensor(value):
        return value.detach().cpu()
    array = np.array(array_from(path, name, value), order="C")
    try:
        return tensor_of(array)
    except TypeError as error:
        raise FileError(f"{path}: {name} is {array.dtype}, which torch does not know.") from error
