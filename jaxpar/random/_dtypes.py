"""The element types that torch's generator fills, with the names in torch's messages."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

_NAMES = {
    np.dtype(np.float32): ("Float", "float", 24),
    np.dtype(np.float64): ("Double", "double", 53),
    np.dtype(np.float16): ("Half", "c10::Half", 11),
    np.dtype(ml_dtypes.bfloat16): ("BFloat16", "c10::BFloat16", 8),
    np.dtype(np.int64): ("Long", "long", 63),
    np.dtype(np.int32): ("Int", "int", 31),
    np.dtype(np.int16): ("Short", "short", 15),
    np.dtype(np.int8): ("Char", "signed char", 7),
    np.dtype(np.uint8): ("Byte", "unsigned char", 8),
    np.dtype(np.bool_): ("Bool", "bool", 1),
}
"""torch's name, C++'s name, and how many binary digits an element holds."""

_FLOATS = list(_NAMES)[:4]


def is_floating(dtype: np.dtype) -> bool:
    return dtype in _FLOATS


def name(dtype: np.dtype) -> str:
    return _NAMES[dtype][0] if dtype in _NAMES else dtype.name


def c_name(dtype: np.dtype) -> str:
    return _NAMES[dtype][1]


def digits(dtype: np.dtype) -> int:
    return _NAMES[dtype][2]


def largest(dtype: np.dtype) -> float:
    return float(ml_dtypes.finfo(dtype).max)


def floating(dtype: DTypeLike, kernel: str) -> np.dtype:
    dtype = np.dtype(dtype)
    if dtype not in _FLOATS:
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{name(dtype)}'")
    return dtype


def supported(dtype: DTypeLike, kernel: str) -> np.dtype:
    dtype = np.dtype(dtype)
    if dtype not in _NAMES:
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{name(dtype)}'")
    return dtype
