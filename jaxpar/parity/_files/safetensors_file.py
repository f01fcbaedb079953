"""The safetensors format: eight bytes of length, a JSON header, and the arrays' bytes.

The safetensors library checks offsets, overlaps, overflows and sizes, but of duplicate keys it keeps the
last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from ...errors import FileError
from .._tensors import array_from

TYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype("<u1"),
    "I8": np.dtype("<i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
NAMES = {dtype: name for name, dtype in TYPES.items()}
LONGEST_HEADER = 100_000_000  # The library's own limit


def read(path: str) -> dict[str, np.ndarray]:
    header, start = _header(path)
    _library_agrees(path)
    data = np.memmap(path, np.uint8, "r", start) if os.path.getsize(path) > start else np.zeros(0, np.uint8)
    return {name: _array(path, name, entry, data) for name, entry in header.items() if name != "__metadata__"}


def _header(path: str) -> tuple[dict[str, Any], int]:
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        room = os.path.getsize(path) - 8
        if length > min(room, LONGEST_HEADER):
            raise FileError(
                f"{path}: it is no safetensors file, or a damaged one: its first 8 bytes announce a header "
                f"of {length} bytes, and {max(room, 0)} follow."
            )
        text = file.read(length)
    try:
        header = json.loads(text.decode(), object_pairs_hook=lambda pairs: _once(path, pairs))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise FileError(f"{path}: its header is no JSON: {error}.") from error
    if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
        raise FileError(f"{path}: its header does not map names to arrays.")
    return header, 8 + length


def _once(path: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise FileError(f"{path}: {twice!r} is in its header twice; which one is meant cannot be known.")
    return entries


def _library_agrees(path: str) -> None:
    import safetensors

    try:
        with safetensors.safe_open(path, "numpy"):
            pass
    except (safetensors.SafetensorError, OSError, ValueError, OverflowError) as error:
        raise FileError(f"{path}: it is damaged: {error}.") from error


def _array(path: str, name: str, entry: Mapping[str, Any], data: np.ndarray) -> np.ndarray:
    dtype = TYPES.get(entry["dtype"])
    if dtype is None:
        raise FileError(f"{path}: {name} has the element type {entry['dtype']}, which NumPy does not know.")
    begin, end = entry["data_offsets"]
    raw = data[begin:end]
    # NumPy computes wrongly on booleans with other bytes, and the library does not check them.
    if dtype == np.bool_ and (raw > 1).any():
        raise FileError(f"{path}: {name} is BOOL and has bytes that are neither 0 nor 1.")
    try:
        return np.asarray(raw).view(dtype).reshape(entry["shape"])
    except ValueError as error:  # the library accepts any size of an array without elements
        raise FileError(f"{path}: {name} has the shape {entry['shape']}: {error}") from None


def write(temporary: str, path: str, tensors: Mapping[str, Any], metadata: dict[str, str]) -> None:
    """Write arrays ordered by decreasing element size, as the library does, so that each one is aligned."""
    arrays = {name: _given(path, name, tensor) for name, tensor in tensors.items()}
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name in order:
        array = arrays[name]
        header[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    # Padded to 8 bytes, so that the data, and with the order above every array, is aligned in the mapped
    # file. The library is not used for writing: the `parity` extra is needed for reading only.
    text += b" " * (-len(text) % 8)
    with open(temporary, "xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)


def _given(path: str, name: str, tensor: Any) -> np.ndarray:
    if name == "__metadata__" or not isinstance(name, str):
        raise FileError(f"{path}: {name!r} cannot be the name of an array in a safetensors file.")
    array = array_from(path, name, tensor)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if little.dtype not in NAMES:
        raise FileError(f"{path}: {name} is {array.dtype}, which safetensors cannot hold.")
    return little
