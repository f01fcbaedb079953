"""Names in a comparison of two torch models: the first model and the second, not torch and Flax."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ._comparison import Comparison
from ._comparison_data import Divergence
from ._weights.pytree_model import is_of_torch

PREFIX = re.compile(r"(parity\.)?\w+: ")  # of this library's messages
FIRST, SECOND = "the first model", "the second model"
NAMES = (
    # Advice for Flax's layers alone.
    (r" as torch and jaxpar\.nn count it, \S+ in flax \(it acts as (\S+), flax's \S+\)", r" (it acts as \1)"),
    (r"nnx\.Variable", "parameter"),
    (r": jaxpar\.nn\.\w+( has both)?", ""),
    (r"the (Flax|JAX) (model|module)", SECOND),
    (r"the torch (model|module)", FIRST),
    (r"\b(Flax|JAX)\b", SECOND),
    # Not the names of its modules and functions.
    (r"\btorch\b(?!\.\w)", FIRST),
)


def worded(text: str) -> str:
    """Replace the frameworks' names.

    >>> worded("torch's outputs are 1e-8 from exact ones, and Flax's 2e-8; see torch.nn")
    "the first model's outputs are 1e-8 from exact ones, and the second model's 2e-8; see torch.nn"
    """
    for name, instead in NAMES:
        text = re.sub(name, instead, text)
    return text


def in_names_of(model: Any, comparison: Comparison) -> Comparison:
    """Return the comparison with the names of two torch models, if the second is one."""
    if not is_of_torch(model):
        return comparison
    divergence = comparison.divergence
    return dataclasses.replace(
        comparison,
        rows=tuple(dataclasses.replace(row, reason=worded(row.reason)) for row in comparison.rows),
        notes=tuple(map(worded, comparison.notes)),
        divergence=divergence and _divergence(divergence),
    )


def _divergence(divergence: Divergence) -> Divergence:
    def noted(items: Any, name: str) -> Any:
        return tuple(dataclasses.replace(x, **{name: worded(getattr(x, name))}) for x in items)

    return dataclasses.replace(
        divergence,
        where=worded(divergence.where),
        causes=noted(divergence.causes, "text"),
        layers=noted(divergence.layers, "note"),
        others=tuple(map(_divergence, divergence.others)),
    )


@contextmanager
def errors_in_names_of(model: Any) -> Iterator[None]:
    """Replace the frameworks' names in messages of this library's errors."""
    try:
        yield
    except Exception as error:
        message = error.args[0] if error.args else None
        if is_of_torch(model) and isinstance(message, str) and PREFIX.match(message):
            error.args = (worded(message), *error.args[1:])
        raise
