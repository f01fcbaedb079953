"""Digests that show whether a record or a trace was changed after writing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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
