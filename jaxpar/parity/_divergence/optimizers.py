"""Explain updates that differ although the gradients agree: torch's optimizer with one setting changed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .._comparison_data import Cause, Divergence
from .._loops.recipe import VALUES, Recipe, Simulation
from .._sides.step_data import Named
from .._sides.torch_side import to_numpy
from .array_changes import EQUAL, relative_error
from .search import Budget
from .wording import UPDATES

if TYPE_CHECKING:
    from ..._rulebook import Part
    from .._levels import Batches
    from .._model_pair import ModelPair

Parameters = list[torch.nn.Parameter]
Build = Callable[[Parameters], torch.optim.Optimizer]

CONJUGATE = (
    "the optimizer is given the gradients of complex parameters (it acts on their conjugates, which JAX's "
    "gradients are: conjugate them first)"
)
OTHERS = {"Adam": ("AdamW", "NAdam"), "AdamW": ("Adam",), "NAdam": ("Adam",), "RAdam": ("Adam",)}


def divergence(
    pair: ModelPair, batches: Batches, steps: int, noise: Collection[str], budget: Budget
) -> Divergence | None:
    """Run both sides, torch with each variation in turn, and compare all weights except `noise`."""
    # `steps` extends past the first differing step: settings that are equivalent for one step (a smaller
    # rate, more dampening) differ in the next.
    if not pair.task.optimizer:
        return None
    build, tx = pair.task.optimizer
    right = build([torch.nn.Parameter(torch.zeros(1))])
    reference = pair.reference("float64")
    candidate = pair.candidate(reference)
    for step in range(1, steps + 1):
        candidate.step(batches(step), reference.step(batches(step)).masks)
    # Every variation runs from the start, because an optimizer's state depends on its earlier settings.
    flax_weights, causes = candidate.weights(), []
    for text, other in itertools.chain(_as_one_bias(build, pair), variations(build, right)):
        if budget.over:
            break
        varied = dataclasses.replace(pair, task=dataclasses.replace(pair.task, optimizer=(other, tx)))
        try:
            torch_weights = _weights(varied, batches, steps)
        except (ValueError, TypeError, RuntimeError):
            continue  # torch rejects these settings
        relative = max(
            relative_error(flax_weights[name], torch_weights[name])
            for name in torch_weights
            if name not in noise
        )
        if relative <= EQUAL:
            causes.append(Cause(text, relative))
    best = tuple(sorted(causes, key=lambda cause: cause.relative))
    return Divergence("optimizer", "optimizer", type(right).__name__, UPDATES, best)


def _as_one_bias(build: Build, pair: ModelPair) -> Iterator[tuple[str, Build]]:
    """Yield the variation for Flax's recurrent layers, whose one bias is the sum of torch's two."""
    # Both of torch's biases get the gradient, so their sum moves twice as far as Flax's bias.
    names = [name for name, _ in pair.torch_module.named_parameters()]
    summed = [
        (part, names.index(part.torch[0]), names.index(part.torch[1]))
        for link in pair.links.layers
        for part in link.parts
        if len(part.torch) == 2 and part.gradient_to_flax and set(part.torch) <= set(names)
    ]
    if summed:
        _, i, j = summed[0]
        (owner, _, first), (_, _, second) = names[i].rpartition("."), names[j].rpartition(".")
        kind = type(pair.torch_module.get_submodule(owner)).__name__
        text = (
            f"{owner} trains {first} and {second} (it acts as if it trained their sum, which moves half as "
            f"far: jaxpar.nn.{kind} has both)"
        )
        yield text, partial(_summed, build, summed)


def _weights(pair: ModelPair, batches: Batches, steps: int) -> Named:
    side = pair.reference("float64")
    for step in range(1, steps + 1):
        side.step(batches(step))
    return side.weights()


def variations(build: Build, right: torch.optim.Optimizer) -> Iterator[tuple[str, Build]]:
    defaults, kind = right.defaults, type(right).__name__
    yield CONJUGATE, partial(_conjugate, build)
    yield "torch leaves parameters without a gradient alone (they get one of zero)", partial(_every, build)
    for name, values in VALUES.items():
        for value in values:
            if name in defaults and value != defaults[name]:
                text = f"{name}={defaults[name]} (it acts as {value})"
                yield text, partial(_with, build, {name: value})
    rate = defaults.get("lr")
    for factor in (0.1, 10.0, 0.5, 2.0):
        yield f"lr={rate} (it acts as {factor * rate:g})", partial(_with, build, {"lr": factor * rate})
    for other in OTHERS.get(kind, ()):
        yield f"{kind} (it acts as {other})", partial(_as, build, getattr(torch.optim, other), {})
    yield from _forms(build, defaults)
    if kind == "AdamW":
        for value in VALUES["weight_decay"]:
            text = (
                f"{kind}, weight_decay={defaults['weight_decay']} (it acts as Adam with weight_decay={value})"
            )
            yield text, partial(_as, build, torch.optim.Adam, {"weight_decay": value})


def _forms(build: Build, defaults: dict[str, Any]) -> Iterator[tuple[str, Build]]:
    """Yield different formulas that optimizers of the same name use."""
    eps = defaults.get("eps")
    if "betas" in defaults:
        forms: list[tuple[str, dict[str, Any]]] = [
            ("moments are divided by 1 - beta**t (they are not)", {"corrected": False}),
            ("there is no momentum of Nesterov's (there is)", {"nesterov": True}),
            (f"eps={eps} is added to the corrected root (to the uncorrected one)", {"eps_uncorrected": True}),
        ]
        for root in dict.fromkeys((eps, 1e-8)):
            replaced = f"eps={eps} is added behind the root (it acts as eps_root={root:g}, inside)"
            additional = f"eps={eps} is added behind the root alone (there is eps_root={root:g}, too)"
            forms += [(replaced, {"eps": 0.0, "eps_root": root}), (additional, {"eps_root": root})]
        for text, changes in forms:
            yield text, partial(_Formula, build, "adam", changes)
    if "alpha" in defaults and "eps" in defaults:
        text = f"eps={eps} is added behind the root (inside of it: eps_in_sqrt=False)"
        yield text, partial(_Formula, build, "rmsprop", {"eps": 0.0, "eps_root": eps})
        yield "the mean of squares starts at 0 (at 1)", partial(_Formula, build, "rmsprop", {"initial": 1.0})
    if decay := defaults.get("weight_decay"):
        shares = {f"{decay}": decay}
        if not defaults.get("decoupled_weight_decay"):
            shares[f"the rate times {decay}"] = defaults["lr"] * decay
        for amount, share in shares.items():
            text = f"weight_decay={decay} is torch's (each step takes {amount} of the weight itself)"
            yield text, partial(_decoupled, build, share)


class _Formula(torch.optim.Optimizer):
    """The formula that `compare_loops` has for an optimizer, with some settings changed."""

    def __init__(self, build: Build, kind: str, changes: dict[str, Any], parameters: Parameters):
        super().__init__(build(parameters).param_groups, {})
        pairs = ((p, group) for group in self.param_groups for p in group["params"])
        self.named = {str(i): pair for i, pair in enumerate(pairs)}
        settings = {
            name: {**group, "coupled": not group.get("decoupled_weight_decay"), **changes}
            for name, (_, group) in self.named.items()
        }
        self.simulation = Simulation(Recipe(kind, settings))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        moving = {name: p for name, (p, _) in self.named.items() if p.grad is not None}
        weights = {name: to_numpy(p) for name, p in moving.items()}
        gradients = {name: to_numpy(p.grad) for name, p in moving.items()}
        for name, (constant, slope) in self.simulation.update(weights, gradients).items():
            p, group = self.named[name]
            p += torch.from_numpy(np.asarray(constant + group["lr"] * slope))


def _decoupled(build: Build, share: float, parameters: Parameters) -> torch.optim.Optimizer:
    """Build the optimizer with decoupled decay: each step subtracts `share` times the old weight."""
    optimizer = _with(build, {"weight_decay": 0.0}, parameters)
    old_values: list[torch.Tensor] = []

    # Copies, because the step updates parameters in place, and decoupled decay uses the old weights.
    def before(*_: Any) -> None:
        old_values[:] = [p.detach().clone() for p in parameters]

    def after(*_: Any) -> None:
        with torch.no_grad():
            for p, old in zip(parameters, old_values, strict=True):
                if p.grad is not None:
                    p -= share * old

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    return optimizer


def _with(build: Build, settings: dict[str, Any], parameters: Parameters) -> torch.optim.Optimizer:
    optimizer = build(parameters)
    # In the groups rather than the constructor: `build` is the user's function, and takes only parameters.
    for group in optimizer.param_groups:
        group.update(settings)
    return optimizer


def _every(build: Build, parameters: Parameters) -> torch.optim.Optimizer:
    """Build an optimizer that treats missing gradients as zeros, as JAX does: such parameters still decay."""
    frozen = [p for p in parameters if not p.requires_grad]
    for p in frozen:
        p.requires_grad_(True)  # `build` may select the parameters that require a gradient
    optimizer = build(parameters)
    for p in frozen:
        p.requires_grad_(False)

    def fill(*_: Any) -> None:
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    optimizer.register_step_pre_hook(fill)
    return optimizer


def _summed(
    build: Build, summed: list[tuple[Part, int, int]], parameters: Parameters
) -> torch.optim.Optimizer:
    """Build an optimizer that trains the sum of two biases: the first holds the sum, the second stays 0."""
    stay = []
    for part, *both in summed:
        first, second = (parameters[i] for i in both)
        values = part.to_torch(*part.to_flax(*(x.detach().numpy() for x in (first, second))))
        ones = np.ones(tuple(first.shape))
        stay.append((second, torch.from_numpy(part.to_torch(*part.to_flax(ones, ones))[1] != 0)))
        for x, value in zip((first, second), values, strict=True):
            x.data.copy_(torch.from_numpy(np.array(value)))
    optimizer = build(parameters)

    def hold(*_: Any) -> None:
        for parameter, moves in stay:
            if parameter.grad is not None:
                parameter.grad *= moves

    optimizer.register_step_pre_hook(hold)
    return optimizer


def _conjugate(build: Build, parameters: Parameters) -> torch.optim.Optimizer:
    if not any(parameter.is_complex() for parameter in parameters):
        raise ValueError("there is nothing to conjugate")
    optimizer = build(parameters)

    def turn(*_: Any) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.conj().resolve_conj()

    optimizer.register_step_pre_hook(turn)
    return optimizer


def _as(build: Build, other: type, settings: dict[str, Any], parameters: Parameters) -> torch.optim.Optimizer:
    before = build(parameters)
    common = {"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"} & before.defaults.keys()
    options = {name: before.defaults[name] for name in common} | settings
    return other(before.param_groups[0]["params"], **options)
