"""Read the .json of a record, trace or contract; digests that show whether it was changed after writing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import FileError


def seal(manifest: Mapping[str, Any]) -> str:
    """Return a digest of the .json's content, which ignores whitespace and the order of keys."""
    # Against bounds edited by hand, not against forgery: the digest has no secret.
    content = {name: value for name, value in manifest.items() if name != "seal"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest(path: Path) -> str:
    with path.open("rb") as file:
        hashed = hashlib.sha256()
        while chunk := file.read(1 << 20):
            hashed.update(chunk)
        return hashed.hexdigest()


def read_manifest(
    path: Path, what: str, format: str, version: int, fields: Mapping[str, type] | None = None
) -> dict[str, Any]:
    """Return the content of a .json of this format and version; FileError for a field of the wrong type."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise FileError(f"{path}: it cannot be read: {error}.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != format:
        raise FileError(f"{path}: it is {what}.")
    if (actual := manifest.get("version")) != version:
        raise FileError(f"{path}: it is of version {actual}, and this is jaxpar's {version}.")
    if absent := (fields or {}).keys() - manifest.keys():
        raise FileError(f"{path}: {', '.join(sorted(absent))} is missing.")
    for name, kind in (fields or {}).items():
        # Not isinstance, which accepts True where an int belongs.
        if type(manifest[name]) is not kind:
            actual = type(manifest[name]).__name__
            raise FileError(f"{path}: its {name} is {actual}, not {kind.__name__}.")
    return manifest
