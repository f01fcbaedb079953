"""Names in a report on models other than Flax's: of two torch models the first and second, and Keras's."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ._comparison import Comparison
from ._comparison_data import Divergence
from ._weights.pytree_model import framework_of

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
IN_KERAS = (
    (r": jaxpar\.nn\.\w+( has both)?", ""),
    (r" and jaxpar\.nn count it", " counts it"),
    (r"nnx\.Variable", "keras.Variable"),
    (r"\b[Ff]lax\b(?!\.\w)", "Keras"),
)
BY_FRAMEWORK = {"torch": NAMES, "Keras": IN_KERAS}


def worded(text: str, names: Iterable[tuple[str, str]] = NAMES) -> str:
    """Replace the frameworks' names.

    >>> worded("torch's outputs are 1e-8 from exact ones, and Flax's 2e-8; see torch.nn")
    "the first model's outputs are 1e-8 from exact ones, and the second model's 2e-8; see torch.nn"
    """
    for name, instead in names:
        text = re.sub(name, instead, text)
    return text


def in_names_of(model: Any, comparison: Comparison) -> Comparison:
    """Return the comparison with the names of two torch models if the second is one, or with Keras's."""
    names = BY_FRAMEWORK.get(framework_of(model))
    if names is None:
        return comparison
    named = functools.partial(worded, names=names)
    divergence = comparison.divergence
    return dataclasses.replace(
        comparison,
        rows=tuple(dataclasses.replace(row, reason=named(row.reason)) for row in comparison.rows),
        notes=tuple(map(named, comparison.notes)),
        divergence=divergence and _divergence(divergence, named),
    )


def _divergence(divergence: Divergence, named: Callable[[str], str]) -> Divergence:
    def noted(items: Any, name: str) -> Any:
        return tuple(dataclasses.replace(x, **{name: named(getattr(x, name))}) for x in items)

    return dataclasses.replace(
        divergence,
        where=named(divergence.where),
        causes=noted(divergence.causes, "text"),
        layers=noted(divergence.layers, "note"),
        others=tuple(_divergence(other, named) for other in divergence.others),
    )


@contextmanager
def errors_in_names_of(model: Any) -> Iterator[None]:
    """Replace the frameworks' names in messages of this library's errors."""
    try:
        yield
    except Exception as error:
        message = error.args[0] if error.args else None
        names = BY_FRAMEWORK.get(framework_of(model))
        if names and isinstance(message, str) and PREFIX.match(message):
            error.args = (worded(message, names), *error.args[1:])
        raise
