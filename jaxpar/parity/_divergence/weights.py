"""Explain weights that differ (weights="own"): rearrangements of the first leaf that yield torch's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from .._comparison_data import Cause, Divergence
from .._model_pair import ModelPair
from ..measuring import Difference
from .array_changes import EQUAL, blocks, relative_error
from .catalogue.variation import orders

MOST_SORTED = 128  # heads or experts whose names may have been sorted as strings


def divergence(pair: ModelPair, different: list[Difference]) -> Divergence:
    """Return the divergence of the first differing leaf."""
    name = different[0].name
    reference = pair.reference("float64")
    every = reference.weights()
    torch_leaf, flax_leaf = every[name], pair.candidate(reference).weights()[name]
    link = next(link for link in pair.links.layers for part in link.parts if name in part.flax)
    # Rearrangements of equal shape raise no error when weights are loaded, so they are the likeliest
    # mistakes.
    fitting = ((text, x) for text, x in _rearranged(flax_leaf) if x.shape == torch_leaf.shape)
    candidates = [Cause(text, relative_error(x, torch_leaf)) for text, x in fitting]
    candidates += [
        Cause(f"it holds torch's {name} (it holds torch's {other})", relative_error(flax_leaf, x))
        for other, x in every.items()
        if other != name
    ]
    causes = tuple(sorted((c for c in candidates if c.relative <= EQUAL), key=lambda c: c.relative))
    where = f"The weights of {len(different)} leaves are not torch's; the first is {name}."
    return Divergence(link.torch, link.flax, link.rule.torch if link.rule else "", where, causes)


def _rearranged(x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    for axes in orders(x.ndim):
        yield f"its axes are permuted by {axes}", x.transpose(axes)
    for axis in range(x.ndim):
        yield f"axis {axis} is reversed", np.flip(x, axis)
        for count in (2, 3, 4):
            if x.shape[axis] % count == 0:
                yield from _in_order(x, axis, orders(count))
        yield from blocks(x, axis)
        yield from _sorted(x, axis)
    if x.ndim > 2:
        yield "its spatial axes are reversed", np.flip(x, tuple(range(x.ndim - 2)))
    yield "its sign is turned", -x


def _in_order(
    x: np.ndarray, axis: int, orders: Iterable[tuple[int, ...]]
) -> Iterator[tuple[str, np.ndarray]]:
    for order in orders:
        parts = np.split(x, len(order), axis)
        text = f"the {len(order)} blocks of axis {axis} are taken in order {order}"
        yield text, np.concatenate([parts[i] for i in order], axis)


def _sorted(x: np.ndarray, axis: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the order of heads or experts whose numbers were sorted as strings: 0, 1, 10, 11, 2."""
    length = x.shape[axis]
    for count in range(11, min(length, MOST_SORTED) + 1):
        if length % count == 0:
            as_texts = sorted(range(count), key=str)
            back = tuple(as_texts.index(i) for i in range(count))
            for _, array in _in_order(x, axis, [back]):
                yield (
                    f"the {count} blocks of axis {axis} are in order (they are sorted as texts: 0, 1, 10)",
                    array,
                )
