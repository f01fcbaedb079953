"""Look up a layer's rule by the name of its class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from . import attention, convolution, dense, keras, normalisation, parametrized, recurrent, shapeless
from .rule import Layer, Rule, Shapes

Row = Rule | Callable[[Layer, Shapes | None], Rule | None]


def rule_for(layer: Layer, shapes: Shapes | None = None) -> Rule | None:
    """Return the rule of a layer, or of its nearest base class; None for layers without one.

    `shapes` of the layer's leaves are needed for Linen's DenseGeneral, which does not store several axes'
    sizes.

    >>> from flax import linen
    >>> from jaxpar._rulebook import rule_for
    >>> rule_for(linen.Dense(3)).torch_shapes({"kernel": (4, 3), "bias": (3,)})
    {'weight': (3, 4), 'bias': (3,)}
    """
    # The nearest base class, so that a user's subclass of a layer has the layer's rule.
    for kind in type(layer).__mro__:
        row = ROWS.get(_key(kind))
        if row is not None:
            return row if isinstance(row, Rule) else row(layer, shapes)
    return None


def _key(kind: type) -> str:
    # By package rather than by class: importing jaxpar.nn here would be circular, and Flax's layers move
    # between modules.
    package = next((p for p in _FAMILIES if f"{kind.__module__}.".startswith(p + ".")), None)
    return f"{_FAMILIES[package]}.{kind.__name__}" if package else ""


# The following rows depend on the rows of inner layers, so they are defined where `rule_for` is.


def _one_direction(layer: Layer, shapes: Shapes | None) -> Rule | None:
    cell = rule_for(layer.cell)
    return cell and cell.at_depth(0).inside("cell")


def _both_directions(layer: Layer, shapes: Shapes | None) -> Rule | None:
    names = ("forward_rnn", "backward_rnn") if hasattr(layer, "forward_rnn") else KERAS_HALVES
    cells = [rule_for(getattr(getattr(layer, name), "cell", None)) for name in names]
    if None in cells:
        return None
    forward, backward = (
        cell.at_depth(0, reverse).inside(f"{half}.cell")
        for cell, half, reverse in zip(cells, names, (False, True), strict=True)
        if cell is not None
    )
    return dataclasses.replace(forward, parts=forward.parts + backward.parts)


def _weight_norm(layer: Layer, shapes: Shapes | None) -> Rule | None:
    inner = rule_for(layer.layer) or parametrized.of_users(layer.layer)
    return inner and parametrized.weight_norm(layer, inner)


def _spectral_norm(layer: Layer, shapes: Shapes | None) -> Rule | None:
    inner = rule_for(layer.layer)
    return inner and parametrized.spectral_norm(layer, inner)


KERAS_HALVES = ("forward_layer", "backward_layer")  # of Keras's Bidirectional
_BOOKS = (dense, convolution, normalisation, attention, recurrent, shapeless, keras)
ROWS: dict[str, Row] = {key: row for book in _BOOKS for key, row in book.ROWS.items()}
ROWS |= {"jaxpar.nn.WeightNorm": _weight_norm, "jaxpar.nn.SpectralNorm": _spectral_norm}
ROWS |= {"nnx.RNN": _one_direction, "linen.RNN": _one_direction, "nnx.Bidirectional": _both_directions}
ROWS |= dict.fromkeys(("keras.LSTM", "keras.GRU", "keras.SimpleRNN", "keras.RNN"), _one_direction)
ROWS |= {"keras.Bidirectional": _both_directions}
_FAMILIES = {"flax.nnx": "nnx", "flax.linen": "linen", "jaxpar.nn": "jaxpar.nn", "keras.src.layers": "keras"}
