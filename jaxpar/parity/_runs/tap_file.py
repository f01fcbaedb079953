"""Files of taps: records with checksums, appended one at a time. A record is JSON and plain arrays.

    magic, then for each record: length u32, crc32 u32, payload
    payload: length of the JSON u32, JSON, the arrays' bytes one after the other

A process that is killed leaves a complete file, apart from the record that it was writing.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import FileError

MAGIC = b"jaxpar.tap 1\n"
HEAD = struct.Struct("<II")
DTYPES = frozenset({"<f8", "<f4", "<f2", "<u8", "<u4", "<i8", "<i4", "|u1", "|i1", "|b1", "<i2", "<u2"})
Record = tuple[dict[str, Any], dict[str, np.ndarray]]


def encoded(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return one record. `arrays` are written with their names, types and shapes."""
    plain = {name: np.ascontiguousarray(x).reshape(x.shape) for name, x in arrays.items()}
    layout = [[name, x.dtype.str, list(x.shape)] for name, x in plain.items()]
    text = json.dumps({**header, "arrays": layout}, separators=(",", ":")).encode()
    payload = b"".join([struct.pack("<I", len(text)), text, *(x.tobytes() for x in plain.values())])
    return HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def opened(path: Path) -> int:
    """Open a file to append to, and remove a record that a killed process left incomplete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        if os.fstat(descriptor).st_size:
            os.ftruncate(descriptor, max(end for end, _ in _payloads(path, path.read_bytes())))
        if not os.fstat(descriptor).st_size:
            os.write(descriptor, MAGIC)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read(path: Path) -> tuple[list[Record], bool]:
    """Return the records, and whether the last one is incomplete.

    Raises:
      FileError: the file has no taps, is damaged, or a record is not what `encoded` writes.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: it cannot be read: {error.strerror}.") from error
    records, end = [], 0
    for end, payload in _payloads(path, data):  # noqa: B007  # the last one is used below
        if payload is not None:
            records.append(_decoded(path, payload))
    return records, end < len(data)


def _payloads(path: Path, data: bytes) -> Iterator[tuple[int, memoryview | None]]:
    """Yield the end of the magic, and then the end and payload of every complete record."""
    if not MAGIC.startswith(data[: len(MAGIC)]):
        raise FileError(f"{path}: it is not a file of taps: it begins with {data[: len(MAGIC)]!r}.")
    if len(data) < len(MAGIC):  # killed while it was created
        yield 0, None
        return
    position = len(MAGIC)
    yield position, None
    view = memoryview(data)
    while position + HEAD.size <= len(data):
        length, checksum = HEAD.unpack_from(data, position)
        end = position + HEAD.size + length
        if end > len(data):
            return
        payload = view[position + HEAD.size : end]
        if zlib.crc32(payload) != checksum:
            if end == len(data):
                return
            raise FileError(f"{path}: it is damaged: the record at byte {position} has another checksum.")
        yield end, payload
        position = end


def _decoded(path: Path, payload: memoryview) -> Record:
    try:
        (length,) = struct.unpack_from("<I", payload)
        header = json.loads(bytes(payload[4 : 4 + length]))
        arrays, position = {}, 4 + length
        for name, dtype, shape in header["arrays"]:
            if dtype not in DTYPES or not all(type(n) is int and n >= 0 for n in shape):
                raise ValueError(f"array {name!r} has type {dtype!r} and shape {shape!r}")
            count = 1
            for n in shape:
                count *= n
            arrays[str(name)] = np.frombuffer(payload, dtype, count, position).reshape(shape)
            position += count * np.dtype(dtype).itemsize
        if position != len(payload):
            raise ValueError(f"its arrays have {position} of {len(payload)} bytes")
    except (ValueError, TypeError, KeyError, struct.error, RecursionError) as error:
        raise FileError(f"{path}: a record is not readable: {error}.") from error
    return header, arrays
