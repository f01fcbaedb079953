"""What a comparison does not reach: the values and the code that no verdict "same" covers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .measuring import Difference, Kind

if TYPE_CHECKING:
    import torch

    from ._sides.call_arguments import Call

NOT_REACHED = "not reached: "  # Starts the notes on what was not exercised
NAMED = 4  # Names in a sentence; the others are counted
LINES = 12  # The same, of lines of code
MODES = {"train", "training", "is_training", "deterministic", "use_running_average"}  # follow the mode
SHAKE = 0.02  # Standard deviation of what `shake` adds to parameters: as large as usual initial values
LARGE_SHAKE = 0.5  # The same, where no parameter gets a gradient after that


def without_gradient(differences: Iterable[Difference]) -> list[str]:
    """Return the parameters whose gradients are exactly 0 on both sides in all steps."""
    nonzero: dict[str, bool] = {}
    for d in differences:
        if d.kind is Kind.GRADIENT:
            nonzero[d.name] = nonzero.get(d.name, False) or bool(d.magnitude or d.max_abs)
    return [name for name, reached in nonzero.items() if not reached]


def has_gradients(differences: Iterable[Difference]) -> bool:
    """Return whether any parameter has a gradient that is not 0, on either side."""
    return any(d.kind is Kind.GRADIENT and (d.magnitude or d.max_abs) for d in differences)


def layers_without_gradient(differences: Sequence[Difference]) -> list[str]:
    """Return the layers of which no parameter has a gradient."""
    parameters = {d.name: d.name.rpartition(".")[0] for d in differences if d.kind is Kind.GRADIENT}
    unreached = set(without_gradient(differences))
    reached = {layer for name, layer in parameters.items() if name not in unreached}
    return [layer for layer in dict.fromkeys(parameters.values()) if layer not in reached]


def shake(module: torch.nn.Module, scale: float = SHAKE) -> None:
    """Perturb all weights and running statistics in place, always by the same numbers.

    At its initial values a model can hide a difference: a residual branch that is multiplied by 0, a scale
    of 1 that one side leaves out.
    """
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for tensor in module.parameters():
            if tensor.is_floating_point():
                tensor += scale * torch.randn_like(tensor)
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer += 0.1 * torch.randn_like(buffer)
            if name.endswith("running_var"):
                # Scaled rather than shifted: a variance must stay positive.
                buffer *= 1 + 0.5 * torch.rand_like(buffer)


def unreached(
    module: torch.nn.Module, training: bool, steps: int, optimizes: bool, differences: Sequence[Difference]
) -> Iterator[str]:
    """Return a sentence for each part that the comparison did not exercise."""
    if names := without_gradient(differences):
        total = len({d.name for d in differences if d.kind is Kind.GRADIENT})
        yield f"{len(names)} of {total} parameters have the gradient 0 on both sides: {some(names)}"
    inputs = [d for d in differences if d.kind is Kind.INPUT_GRADIENT]
    if inputs and not any(d.magnitude or d.max_abs for d in inputs):
        yield f"the outputs do not depend on {some(list(dict.fromkeys(d.name for d in inputs)))}"
    if not training:
        if names := [
            name for name, layer in module.named_modules() if getattr(layer, "p", 0) and _drops(layer)
        ]:
            yield f"evaluation: dropout ({some(names)})"
        if names := [name for name, layer in module.named_modules() if _has_statistics(layer)]:
            yield f"evaluation: batch statistics and their momentum ({some(names)})"
    elif names := [
        name
        for name, layer in module.named_modules()
        if _has_statistics(layer) or (_drops(layer) and layer.p)
    ]:
        yield f"training: what torch's layers do in evaluation ({some(names)})"
    if optimizes and steps == 1:
        yield "one step: what the optimizer keeps from step to step (momentum, moments, a schedule)"
    elif optimizes:
        yield f"steps after step {steps}: schedules, and what else changes later (amsgrad, rectification)"


def of_call(call: Call, framework: str, parameters: Iterable[inspect.Parameter]) -> Iterator[str]:
    """Return what the arguments of a call leave out: values, and axes longer than 1."""
    arrays: Mapping[str, np.ndarray] = call.arrays
    if names := [f"{name} ({x.flat[0]})" for name, x in arrays.items() if x.size and (x == x.flat[0]).all()]:
        yield f"other numbers in {some(names)}, which has only one, of {framework}"
    if names := [f"{name}'s axis {x.shape.index(1)}" for name, x in arrays.items() if 1 in x.shape]:
        yield f"what is done along axes of length 1 of {framework}'s inputs: {some(names)}"
    if names := [x.name for x in parameters if x.default is not x.empty and x.name not in MODES]:
        yield f"other values of {framework}'s arguments {some(names)}"


def of_rows(rows: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Return the parameters of which some rows have no gradient, as a table's that no index reads."""
    if names := [f"{name} ({(~x).sum()} of {x.size})" for name, x in rows.items() if x.any() and not x.all()]:
        yield f"rows of {some(names)}, whose gradients are 0 on both sides"


def some(names: Sequence[str], most: int = NAMED) -> str:
    more = len(names) - most
    return ", ".join(name or "the model" for name in names[:most]) + (f" and {more} more" if more > 0 else "")


def _drops(layer: torch.nn.Module) -> bool:
    import torch

    return isinstance(layer, torch.nn.modules.dropout._DropoutNd)


def _has_statistics(layer: torch.nn.Module) -> bool:
    return getattr(layer, "running_mean", None) is not None
