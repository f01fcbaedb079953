"""torch's own files: zip archives with a pickle, from which only tensors are unpickled."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import FileError
from .._tensors import tensor_from


def read(path: str) -> Any:
    torch = _torch(path)
    _check_archive(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # Not torch's message, which advises disabling the protection.
        raise FileError(
            f"{path}: it holds more than tensors{_refused(error)}, and jaxpar unpickles nothing else, "
            "because a pickle can run any code. Where it was made, save module.state_dict() instead, best as "
            ".safetensors."
        ) from None
    except Exception as error:  # errors of zip, pickle, struct and C++
        raise FileError(
            f"{path}: torch cannot read it ({os.path.getsize(path)} bytes): {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error
    # A strided tensor may point past its storage, and reading such a tensor would read foreign memory.
    for name, tensor in _tensors(content, torch):
        claimed, available = tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes()
        if claimed > available and tensor.layout is torch.strided:
            raise FileError(f"{path}: {name} claims {claimed} bytes, and the file has {available} for it.")
    return content


def write(temporary: str, path: str, tensors: Mapping[str, Any]) -> None:
    torch = _torch(path)
    converted = {name: tensor_from(path, name, tensor) for name, tensor in tensors.items()}
    with open(temporary, "xb") as file:
        try:
            torch.save(converted, file)
        except RuntimeError as error:
            # torch closes an archive after a failed write, and the error of closing hides the write's.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def _torch(path: str) -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{path}: this kind of file needs torch, which is not installed (pip install 'jaxpar[torch]'); "
            ".safetensors files do not."
        ) from error
    return torch


def _check_archive(path: str) -> None:
    """torch writes uncompressed zips; older files are bare pickles."""
    with open(path, "rb") as file:
        start = file.read(4)
    if not start.startswith(b"PK\x03\x04"):
        if start[:1] == b"\x80":
            return
        raise FileError(f"{path}: it is no torch file: it begins with {start!r}, neither a zip nor a pickle.")
    # torch allocates what an archive declares, so a small file could claim all memory.
    size = os.path.getsize(path)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise FileError(f"{path}: it is damaged or cut off ({size} bytes): {error}.") from error
    # With two entries of a name, zipfile and torch could disagree about which one is meant.
    names = [entry.filename for entry in entries]
    if len(set(names)) < len(names):
        raise FileError(f"{path}: an entry is in the archive twice.")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise FileError(
            f"{path}: it has compressed entries; torch writes none, and a small file could fill memory."
        )
    if sum(entry.file_size for entry in entries) > size:
        raise FileError(f"{path}: its entries claim more bytes than the {size} of the file.")


def _tensors(content: Any, torch: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(content, torch.Tensor):
        yield path, content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _tensors(value, torch, f"{path}.{key}".lstrip("."))
    elif isinstance(content, (list, tuple)):
        for i, value in enumerate(content):
            yield from _tensors(value, torch, f"{path}[{i}]")


def _refused(error: Exception) -> str:
    match = re.search(r"GLOBAL (\S+)", str(error))
    return f", {match[1]} for one" if match else ""
