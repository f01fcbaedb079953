"""Dotted paths such as `blocks.0.attn.query.kernel`: the attribute names from a model to an array."""

from __future__ import annotations

import re


def join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def owner(leaf: str) -> str:
    return leaf.rpartition(".")[0]


def last(path: str) -> str:
    return path.rpartition(".")[2]


def inside(path: str, prefix: str) -> str | None:
    """Return a path relative to a prefix; None if the path does not begin with the prefix's keys."""
    if not prefix or path == prefix:
        return path if not prefix else ""
    return path[len(prefix) + 1 :] if path.startswith(prefix + ".") else None


def prefixes(name: str) -> list[str]:
    """Of "a.b.c": "", "a", "a.b" and "a.b.c"."""
    parts = name.split(".") if name else []
    return [".".join(parts[:n]) for n in range(len(parts) + 1)]


def torch_like(path: str) -> str:
    """Convert `blocks_0.attn`, as Linen numbers layers, to torch's `blocks.0.attn`."""
    return re.sub(r"_(\d+)(?=\.|$)", r".\1", path)
