"""rule_for: the row of a layer, by the name of its class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from . import attention, convolution, dense, normalisation, parametrized, recurrent, shapeless
from .rule import Layer, Rule, Shapes

Row = Rule | Callable[[Layer, Shapes | None], Rule | None]


def rule_for(layer: Layer, shapes: Shapes | None = None) -> Rule | None:
    """The row of a layer; None if it has none.

    Args:
      layer: an instance of a layer of flax.nnx, flax.linen or jaxpar.nn, or of a subclass of one.
      shapes: the shapes of its leaves by path, needed for Linen's DenseGeneral over several axes, which
        does not know them itself.
    """
    for kind in type(layer).__mro__:
        row = ROWS.get(_key(kind))
        if row is not None:
            return row if isinstance(row, Rule) else row(layer, shapes)
    return None


def _key(kind: type) -> str:
    """The class as the rows name it: "nnx.Linear"."""
    package = next((p for p in _FAMILIES if f"{kind.__module__}.".startswith(p + ".")), None)
    return f"{_FAMILIES[package]}.{kind.__name__}" if package else ""


# The following rows contain other rows, so they can only be here, where all of them are known.


def _one_direction(layer: Layer, shapes: Shapes | None) -> Rule | None:
    """RNN: torch's stack of one layer and one direction."""
    cell = rule_for(layer.cell)
    return cell and cell.at_depth(0).inside("cell")


def _both_directions(layer: Layer, shapes: Shapes | None) -> Rule | None:
    """nnx.Bidirectional: torch's stack of one layer and two directions."""
    cells = [rule_for(getattr(half, "cell", None)) for half in (layer.forward_rnn, layer.backward_rnn)]
    if None in cells:
        return None
    forward, backward = (
        cell.at_depth(0, reverse).inside(f"{half}.cell")
        for cell, half, reverse in zip(cells, ("forward_rnn", "backward_rnn"), (False, True), strict=True)
        if cell is not None
    )
    return dataclasses.replace(forward, parts=forward.parts + backward.parts)


def _weight_norm(layer: Layer, shapes: Shapes | None) -> Rule | None:
    inner = rule_for(layer.layer)
    return inner and parametrized.weight_norm(layer, inner)


def _spectral_norm(layer: Layer, shapes: Shapes | None) -> Rule | None:
    inner = rule_for(layer.layer)
    return inner and parametrized.spectral_norm(layer, inner)


_BOOKS = (dense, convolution, normalisation, attention, recurrent, shapeless)
ROWS: dict[str, Row] = {key: row for book in _BOOKS for key, row in book.ROWS.items()}
ROWS |= {"jaxpar.nn.WeightNorm": _weight_norm, "jaxpar.nn.SpectralNorm": _spectral_norm}
ROWS |= {"nnx.RNN": _one_direction, "linen.RNN": _one_direction, "nnx.Bidirectional": _both_directions}
_FAMILIES = {"flax.nnx": "nnx", "flax.linen": "linen", "jaxpar.nn": "jaxpar.nn"}
