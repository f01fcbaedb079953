"""Dotted paths, `blocks.0.attn.query.kernel`: the attributes that lead from a model to an array."""

from __future__ import annotations

import re


def join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def owner(leaf: str) -> str:
    """The path of the layer that holds a leaf."""
    return leaf.rpartition(".")[0]


def last(path: str) -> str:
    return path.rpartition(".")[2]


def inside(path: str, prefix: str) -> str | None:
    """The rest of a path below a prefix, by whole words; None if the path is not below it."""
    if not prefix or path == prefix:
        return path if not prefix else ""
    return path[len(prefix) + 1 :] if path.startswith(prefix + ".") else None


def prefixes(name: str) -> list[str]:
    """ "a.b.c": "", "a", "a.b", "a.b.c"."""
    parts = name.split(".") if name else []
    return [".".join(parts[:n]) for n in range(len(parts) + 1)]


def torch_like(path: str) -> str:
    """`blocks_0.attn` as `blocks.0.attn`. Linen numbers its layers with an underscore, torch with a dot."""
    return re.sub(r"_(\d+)(?=\.|$)", r".\1", path)
