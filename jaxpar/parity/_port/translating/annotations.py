"""Annotations: what stands in quotes in one, the names of things or a text."""

from __future__ import annotations

import ast
import re

from ..reading.source import Source

QUOTED = re.compile(r"torch\.|Tensor$")
"""An annotation that names something of torch without needing it."""


def names_in(annotation: str) -> list[ast.Name]:
    """The names in an annotation in quotes; none if it is a text, as that of an array's axes."""
    try:
        tree = ast.parse(annotation, mode="eval")
    except SyntaxError:
        return []
    return [child for child in ast.walk(tree) if isinstance(child, ast.Name)]


def is_literal(source: Source, node: ast.AST) -> bool:
    """Whether a text in an annotation is one of the values that are allowed."""
    parent = source.parents[node]
    parent = source.parents[parent] if isinstance(parent, ast.Tuple) else parent
    return isinstance(parent, ast.Subscript) and ast.unparse(parent.value).endswith("Literal")
