"""Three bugs for every model, planted in Flax: an epsilon, exchanged weights, an activation or a scale.

An interceptor inside of the model changes one layer while it is called, so no source has to be patched.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen

from .building import Built
from .layers import Layer, arrives_at, layers_of, torch_names

EPSILONS = ("epsilon", "eps", "variance_epsilon", "layer_norm_epsilon")
OTHER_ACTIVATION = {"gelu": "gelu_new", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "gelu"}
OTHER_ACTIVATION |= {"gated-gelu": "gated-silu", "gated-gelu_new": "gated-silu"}
OTHER_ACTIVATION |= {"silu": "gelu", "swish": "gelu", "quick_gelu": "gelu", "gelu_fast": "gelu"}
GELUS = {"gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast"}
QUERY = re.compile(r"(^|[._])(q|query|q_proj|q_lin|query_proj|to_q|c_attn|query_key_value)$")


@dataclasses.dataclass(frozen=True)
class Planted:
    """Attributes:
    name: a few words for the page.
    flax: the model with the bug.
    mapping: what is added to the mapping.
    places: Flax paths: the layers with the bug, or the first one that it arrives at.
    cause: a pattern that one of the causes must fit.
    """

    name: str
    flax: linen.Module
    places: tuple[str, ...]
    cause: str
    mapping: Mapping[str, str] = dataclasses.field(default_factory=dict)


def planted(built: Built) -> list[Planted]:
    """Three of these; a model that has no place for one gets the next."""
    layers = layers_of(built)
    found = (make(built, layers) for make in (epsilon, exchanged, activation, scale, doubled))
    return [bug for bug in found if bug is not None][:3]


def epsilon(built: Built, layers: list[Layer]) -> Planted | None:
    """That of the norm in the middle."""
    norms = [layer for layer in layers if any(name in layer.numbers for name in EPSILONS)]
    if not norms:
        return None
    norm = norms[len(norms) // 2]
    name = next(name for name in EPSILONS if name in norm.numbers)
    wrong = 1e-3 if norm.numbers[name] != 1e-3 else 1e-5
    module = changed(built.flax, norm.path, {name: wrong})
    text = f"epsilon {wrong:g} for {norm.numbers[name]:g}"
    return Planted(text, module, (norm.path,), rf"{wrong:g}")


def exchanged(built: Built, layers: list[Layer]) -> Planted | None:
    """Two neighbours of one shape hold each other's weights: by the mapping."""
    for one, other in itertools.pairwise(layers):
        if one.shapes and one.shapes == other.shapes and "kernel" in one.shapes:
            there = torch_names(built, (one.path, other.path))
            if there is None:
                continue
            mapping = {there[0]: other.path, there[1]: one.path}
            name = f"weights of {last(one.path)} and {last(other.path)} exchanged"
            return Planted(name, built.flax, (one.path, other.path), "exchanged|it holds torch's", mapping)
    return None


def activation(built: Built, layers: list[Layer]) -> Planted | None:
    """Another one in the config."""
    setting = built.pair.activation
    if setting is None:
        return None
    config: Any = built.flax.config
    for name in setting.split("."):
        config = getattr(config, name)
    if config not in OTHER_ACTIVATION:
        return None
    other = OTHER_ACTIVATION[config]
    cause = "approximate" if {config, other} <= GELUS else other.removeprefix("gated-")
    wrong = built.flax_with(**{setting: other})
    return Planted(f"{other} for {config}", wrong, (arrives_at(built, wrong),), cause)


def scale(built: Built, layers: list[Layer]) -> Planted | None:
    """A query that is not divided by 2."""
    queries = [layer for layer in layers if QUERY.search(layer.path)]
    return _scaled(built, queries[-1], 2.0) if queries else None


def doubled(built: Built, layers: list[Layer]) -> Planted | None:
    """The last convolution or linear layer but one, times 3."""
    kernels = [layer for layer in layers if "kernel" in layer.shapes]
    return _scaled(built, kernels[-2], 3.0) if len(kernels) > 1 else None


def _scaled(built: Built, layer: Layer, factor: float) -> Planted:
    module = changed(built.flax, layer.path, {}, lambda y: factor * y)
    return Planted(f"{last(layer.path)} times {factor:g}", module, (layer.path,), "scale|multiplied")


def last(path: str) -> str:
    return path.rsplit(".", 1)[-1]


def changed(
    module: linen.Module,
    path: str,
    attributes: Mapping[str, Any],
    afterwards: Callable[[jax.Array], jax.Array] = lambda y: y,
) -> linen.Module:
    """A model of a subclass: a layer has other attributes while it is called, and its result is changed."""

    def interceptor(call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        layer = context.module
        if context.method_name != "__call__" or ".".join(layer.path) != path:
            return call(*args, **kwargs)
        before = {name: getattr(layer, name) for name in attributes}
        try:
            for name, value in attributes.items():
                object.__setattr__(layer, name, value)  # past Linen's own, which keeps modules frozen
            return afterwards(call(*args, **kwargs))
        finally:
            for name, value in before.items():
                object.__setattr__(layer, name, value)

    base = type(module)

    def __call__(self: linen.Module, *args: Any, **kwargs: Any) -> Any:
        with linen.intercept_methods(interceptor):
            return base.__call__(self, *args, **kwargs)

    wrong: Any = type(base.__name__, (base,), {"__call__": __call__, "__module__": base.__module__})
    wrong.__init__ = base.__init__  # of a diffusers model it keeps the config, and Linen has made another
    fields = {field.name for field in dataclasses.fields(module) if field.init} - {"parent", "name"}
    return wrong(**{name: getattr(module, name) for name in fields})
