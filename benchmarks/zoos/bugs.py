"""One bug in each model, in a copy of its torch side: an epsilon, exchanged weights or an activation."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from jaxpar.parity._weights import links_of

ACTIVATIONS = {
    "ReLU": torch.nn.GELU,
    "GELU": torch.nn.ReLU,
    "SiLU": torch.nn.GELU,
    "Hardswish": torch.nn.GELU,
    "GELUActivation": torch.nn.ReLU,
    "ReLU6": torch.nn.GELU,
}


@dataclasses.dataclass(frozen=True)
class Planted:
    """Attributes:
    name: a few words for the page.
    torch: the torch model with the bug.
    mapping: what replaces the mapping's own lines.
    places: torch paths: the layers with the bug, or the first one that it arrives at.
    cause: a pattern that one of the causes must fit.
    """

    name: str
    torch: torch.nn.Module
    places: tuple[str, ...]
    cause: str
    mapping: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def planted(question: Any, turn: int) -> Planted | None:
    """One of the three by turns; the next one where the model has no place for it."""
    makers: tuple[Callable[[Any], Planted | None], ...] = (epsilon, exchanged, activation)
    bugs = (makers[(turn + i) % len(makers)](question) for i in range(len(makers)))
    return next((bug for bug in bugs if bug is not None), None)


def epsilon(question: Any) -> Planted | None:
    """That of the norm in the middle."""
    wrong = copy.deepcopy(question.torch)
    norms = [path for path in called(question) if isinstance(getattr(at(wrong, path), "eps", None), float)]
    if not norms:
        return None
    path = norms[len(norms) // 2]
    layer: Any = at(wrong, path)
    before, layer.eps = layer.eps, 1e-3 if layer.eps != 1e-3 else 1e-5
    return Planted(f"epsilon {layer.eps:g} for {before:g}", wrong, (path,), rf"epsilon={layer.eps:g}\b")


def exchanged(question: Any) -> Planted | None:
    """Two neighbours of one shape hold each other's weights: by the mapping."""
    partners = {link.torch: link.flax for link in links(question).layers if link.parts}
    layers = [path for path in called(question) if path in partners]
    for one, other in itertools.pairwise(layers):
        if alike(question, one, other):
            mapping = {one: partners[other], other: partners[one]}
            name = f"weights of {one} and {other} exchanged"
            return Planted(name, question.torch, (one, other), "exchanged|it holds torch's", mapping)
    return None


def activation(question: Any) -> Planted | None:
    """Another one in the middle of the model."""
    order = called(question)
    places = [
        i for i, path in enumerate(order[:-1]) if type(at(question.torch, path)).__name__ in ACTIVATIONS
    ]
    if not places:
        return None
    place = places[len(places) // 2]
    wrong = copy.deepcopy(question.torch)
    above, _, name = order[place].rpartition(".")
    old = type(at(wrong, order[place])).__name__
    new = ACTIVATIONS[old]()
    setattr(at(wrong, above), name, new)
    said = f"{type(new).__name__} for {old}"
    return Planted(said, wrong, (order[place], order[place + 1]), rf"(?i)\b{type(new).__name__}")


def at(module: torch.nn.Module, path: str) -> torch.nn.Module:
    return module.get_submodule(path)


def alike(question: Any, one: str, other: str) -> bool:
    """Whether two layers are of one kind, with matrices of one shape."""
    kinds = {type(at(question.torch, path)) for path in (one, other)}
    matrices = any(len(shape) > 1 for shape in shapes(question, one))
    return len(kinds) == 1 and matrices and shapes(question, one) == shapes(question, other)


def shapes(question: Any, path: str) -> list[tuple[int, ...]]:
    return [tuple(x.shape) for x in at(question.torch, path).state_dict().values()]


def called(question: Any) -> list[str]:
    """The layers without layers inside, in the order of their first calls."""
    module = copy.deepcopy(question.torch)
    order: dict[str, None] = {}
    for path, layer in module.named_modules():
        if not list(layer.children()):
            layer.register_forward_pre_hook(lambda layer, args, path=path: order.setdefault(path))
    with torch.no_grad():
        x = torch.as_tensor(question.inputs)
        module(x.to(next(module.parameters()).dtype) if x.is_floating_point() else x)
    return list(order)


def links(question: Any) -> Any:
    return links_of(
        question.links_flax,
        question.torch,
        mapping=question.mapping,
        ignore_torch=question.compared.get("ignore_torch", ()),
        ignore_flax=question.compared.get("ignore_flax", ()),
        **question.call,
    )
