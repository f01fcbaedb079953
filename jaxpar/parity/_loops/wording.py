"""Rename the sides in the sentences about torch's loop and JAX's."""

from __future__ import annotations

import re


def renamed(text: str, torch: str, jax: str) -> str:
    """Return a sentence with `torch` and `jax` as the names of its sides."""
    for side, name in (("torch", torch), ("JAX", jax)):
        text = re.sub(rf"\b{side}\b", name, text)
    return text
