"""Annotations in quotes: names, or plain text."""

from __future__ import annotations

import ast
import re

from ..reading.source import Source

QUOTED = re.compile(r"torch\.|Tensor$")
"""Quoted annotations of torch, which are left out."""


def names_in(annotation: str) -> list[ast.Name]:
    """Return the names in a quoted annotation; none if it is plain text, such as an array's axes."""
    try:
        tree = ast.parse(annotation, mode="eval")
    except SyntaxError:
        return []
    return [child for child in ast.walk(tree) if isinstance(child, ast.Name)]


def is_literal(source: Source, node: ast.AST) -> bool:
    """Return whether a string in an annotation is a value of `Literal`."""
    parent = source.parents[node]
    parent = source.parents[parent] if isinstance(parent, ast.Tuple) else parent
    return isinstance(parent, ast.Subscript) and ast.unparse(parent.value).endswith("Literal")
