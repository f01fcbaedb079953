"""The layers of a Flax model in the order of their calls, with what bugs are planted by."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import linen

from jaxpar.parity._weights import links_of

from .building import Built


@dataclasses.dataclass(frozen=True)
class Layer:
    """Attributes:
    path: with dots, without collections.
    numbers: its attributes that are floats.
    shapes: of its own parameters.
    """

    path: str
    numbers: Mapping[str, float]
    shapes: Mapping[str, tuple[int, ...]]


def layers_of(built: Built) -> list[Layer]:
    """Of one call; a layer that is called twice counts once."""
    numbers: dict[str, dict[str, float]] = {}

    def note(call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        if context.method_name == "__call__":
            numbers.setdefault(".".join(context.module.path), floats(context.module))
        return call(*args, **kwargs)

    def init() -> Any:
        with linen.intercept_methods(note):
            return built.flax.init(jax.random.key(0), **arrays(built.flax_inputs))

    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(jax.eval_shape(init)["params"]):
        *inside, name = (key.key for key in path)
        shapes.setdefault(".".join(inside), {})[name] = leaf.shape
    return [Layer(path, numbers[path], shapes.get(path, {})) for path in numbers]


def arrays(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: jax.numpy.asarray(x) if isinstance(x, np.ndarray) else x for name, x in inputs.items()}


def floats(layer: linen.Module) -> dict[str, float]:
    return {name: value for name, value in vars(layer).items() if isinstance(value, float)}


def torch_names(built: Built, paths: Sequence[str]) -> list[str] | None:
    """Torch's layers of these paths; None if one is no layer of torch, or part of a fused one."""
    links = links_of(
        built.flax,
        built.torch,
        mapping=built.mapping,
        ignore_torch=built.pair.ignore_torch,
        ignore_flax=built.pair.ignore_flax,
        inputs=(),
        kwargs=arrays(built.flax_inputs),
    )
    there = {link.flax: link.torch for link in links.layers if link.parts}
    return [there[path] for path in paths] if all(path in there for path in paths) else None


def arrives_at(built: Built, wrong: linen.Module) -> str:
    """The first layer that is given something else in `wrong` than in the right model, with equal weights."""
    variables = built.flax.init(jax.random.key(0), **arrays(built.flax_inputs))
    right, other = (inputs_of(model, variables, arrays(built.flax_inputs)) for model in (built.flax, wrong))
    return next(path for path, given in right.items() if not same(given, other[path]))


def inputs_of(model: linen.Module, variables: Any, inputs: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What each layer is given, in the order of the calls."""
    seen: dict[str, list[Any]] = {}

    def note(call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        if context.method_name == "__call__":
            given = [x for x in jax.tree.leaves((args, kwargs)) if isinstance(x, jax.Array)]
            seen.setdefault(".".join(context.module.path), given)
        return call(*args, **kwargs)

    with linen.intercept_methods(note):
        model.apply(variables, **inputs)
    return seen


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
