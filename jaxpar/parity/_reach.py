"""What a comparison does not reach: the values and the code that no verdict "same" covers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from .measuring import Difference, Kind

if TYPE_CHECKING:
    import torch

NOT_REACHED = "not reached: "  # Starts the notes on what was not exercised
NAMED = 4  # Names in a sentence; the others are counted
SHAKE = 0.02  # Standard deviation of what `shake` adds to parameters: as large as usual initial values


def without_gradient(differences: Iterable[Difference]) -> list[str]:
    """Return the parameters whose gradients are exactly 0 on both sides in all steps."""
    nonzero: dict[str, bool] = {}
    for d in differences:
        if d.kind is Kind.GRADIENT:
            nonzero[d.name] = nonzero.get(d.name, False) or bool(d.magnitude or d.max_abs)
    return [name for name, reached in nonzero.items() if not reached]


def layers_without_gradient(differences: Sequence[Difference]) -> list[str]:
    """Return the layers of which no parameter has a gradient."""
    parameters = {d.name: _layer(d.name) for d in differences if d.kind is Kind.GRADIENT}
    unreached = set(without_gradient(differences))
    reached = {layer for name, layer in parameters.items() if name not in unreached}
    return [layer for layer in dict.fromkeys(parameters.values()) if layer not in reached]


def shake(module: torch.nn.Module) -> None:
    """Perturb all weights and running statistics in place, always by the same numbers.

    At its initial values a model can hide a difference: a residual branch that is multiplied by 0, a scale
    of 1 that one side leaves out.
    """
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for tensor in module.parameters():
            if tensor.is_floating_point():
                tensor += SHAKE * torch.randn_like(tensor)
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
    if optimizes and steps == 1:
        yield "one step: what the optimizer keeps from step to step (momentum, moments, a schedule)"


def some(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(name or "the model" for name in names[:NAMED]) + (
        f" and {more} more" if more > 0 else ""
    )


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _drops(layer: torch.nn.Module) -> bool:
    import torch

    return isinstance(layer, torch.nn.modules.dropout._DropoutNd)


def _has_statistics(layer: torch.nn.Module) -> bool:
    return getattr(layer, "running_mean", None) is not None
