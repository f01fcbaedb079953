"""The sentences that locate a divergence, and the place of one in the backward pass. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from .._comparison_data import Divergence, LayerResult
from ..measuring import Difference, Kind

INPUTS = "the inputs"  # the place before a model's first layer


def inside(flax: str, kind: str, relative: float, states: Sequence[str] = ()) -> str:
    what = "differs although it is given the same inputs"
    if states:
        what = f"gives the same outputs, and its {' and '.join(states)} differs afterwards"
    return f"{flax or 'The model'} ({kind}) {what}: {relative:.2g} relative."


def of_another_shape(flax: str, kind: str, flax_shape: tuple, torch_shape: tuple) -> str:
    return f"{flax} ({kind}) returns an array of shape {flax_shape}, and torch's is {torch_shape}."


def between(after: str, flax: str, relative: float, is_first: bool, unreplayed: str = "") -> str:
    what = f"What arrives at {flax} is wrong by itself ({relative:.2g})"
    if is_first:
        what = f"Everything before {flax} agrees, and what arrives there does not ({relative:.2g})"
    return f"{what}: look between {after} and {flax}.{unreplayed}"


def after_all(last: str, name: str, is_first: bool) -> str:
    what = f"The output {name} is wrong by itself"
    if last == INPUTS:
        return f"The output {name} does not agree, and no layer is seen before it: look after {last}."
    if is_first:
        what = f"Every layer agrees, and the output {name} does not"
    return f"{what}: look after {last}."


def without_layers(function: str, torch_line: str, jax_line: str) -> str:
    computed = (
        f"What it is given is computed in {jax_line}: look after it."
        if jax_line
        else "Look after the inputs."
    )
    return (
        f"No line of JAX's code computes what torch's {function} in {torch_line} returns, or what follows "
        f"from it. {computed}"
    )


def norm_position(flax: str, other: str, verb: str) -> str:
    wrong = f"it is given what {other} {verb}: is the norm in front of the branch, or behind the sum?"
    return f"{flax} is given what torch's is ({wrong})"


LOSS = Divergence("loss", "loss", "loss", "The outputs agree; the losses do not.")
UPDATES = "Gradients agree, and what the optimizer makes of them does not."


def backward(layers: Sequence[LayerResult], different: Sequence[Difference]) -> Divergence:
    """Locate the layer closest to the loss whose gradient differs, when the outputs agree."""
    order = [result.candidate for result in layers]
    names = {d.name for d in different if d.kind is Kind.GRADIENT}
    owners = [path for path in order if any(name.startswith(f"{path}.") for name in names)]
    if not owners:
        where = "Outputs and parameter gradients agree; the gradient of the inputs does not."
        return Divergence("", "", "", where)
    # The backward pass starts at the loss, so the last layer of the forward pass is its first.
    last = next(result for result in layers if result.candidate == owners[-1])
    where = (
        f"All outputs agree. In the backward pass the gradient of {last.candidate} is the first to differ: "
        "look for stop_gradient, padding_idx, and functions with another derivative where they have a kink."
    )
    return Divergence(last.reference, last.candidate, last.kind, where)
