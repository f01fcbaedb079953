"""match: guess a mapping from names, kinds, shapes and order, and test it on an example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._weights.guesses import Guesses
from ._weights.mapping import Entries
from ._weights.mapping import Mapping as GuessedMapping
from ._weights.source import TorchWeights, source_of
from ._weights.tree import FlaxModule, tree_of

if TYPE_CHECKING:
    from ._model_inputs import Inputs, Outputs
    from ._sides.step_data import Layout


def match(
    flax_module: FlaxModule,
    torch_module: TorchWeights,
    *,
    mapping: Entries | None = None,
    ignore_torch: Iterable[str] = (),
    ignore_flax: Iterable[str] = (),
    inputs: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    example: Inputs = None,
    torch_inputs: Inputs = None,
    flax_inputs: Inputs = None,
    outputs: Outputs | None = None,
    layout: str | tuple[str, str] | Layout = "same",
    torch_kwargs: Mapping[str, Any] | None = None,
) -> GuessedMapping:
    """Guess a mapping for the names on which torch and Flax disagree.

    Names that agree are omitted. The remaining layers are paired in order with layers of the same kind and
    shape, if both sides have equally many; each such line is marked as a guess. Check it, edit it, and pass
    it to `load_torch`, which never guesses.

    Given an `example`, both models run on it with random weights. Layers are then paired in the order of
    calls, and the guesses are exchanged until the outputs agree; guesses that the outputs cannot decide are
    noted.

    Args:
      flax_module: an NNX module, or a Linen module with `inputs` or an `example`.
      torch_module: a torch module, a state_dict, or a path.
      mapping: the known part of the mapping, which the result includes.
      ignore_torch, ignore_flax: names to leave out, as in `load_torch`.
      inputs, kwargs: arguments of one call of a Linen module; shapes suffice.
      example: the inputs of one call, in torch's layout, as for `compare`. Requires modules with values.
      torch_inputs, flax_inputs: replace the example where the two sides take different arguments.
      outputs: the outputs that must agree, as for `compare`; defaults to all.
      layout, torch_kwargs: for the example, as for `compare`; `kwargs` is its `flax_kwargs`.

    Returns:
      A Mapping: a dict that prints as a dict display, with unmatched and ambiguous names as comments.

    Raises:
      TypeError: an example without a torch module, or with a Flax module that has no values.

    >>> import torch
    >>> from flax import nnx
    >>> from jaxpar import parity
    >>> torch_module = torch.nn.Sequential(torch.nn.Linear(3, 4))
    >>> class Flax(nnx.Module):
    ...     def __init__(self):
    ...         self.fc = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    >>> dict(parity.match(Flax(), torch_module))
    {'0': 'fc'}
    """
    # Tuples, because an iterator would be exhausted after the first of many attempts.
    ignoring: dict[str, Any] = {"ignore_torch": tuple(ignore_torch), "ignore_flax": tuple(ignore_flax)}
    examples = example, torch_inputs, flax_inputs
    if all(argument is None for argument in examples):
        tree = tree_of(flax_module, inputs, kwargs)
        return Guesses(tree, source_of(torch_module), mapping, **ignoring).mapping()
    from ._mapping_trial import MappingTrial, tried_mapping  # torch, which guessing does without

    kwargs_pair = torch_kwargs, kwargs
    trial = MappingTrial(
        flax_module, torch_module, examples, layout, outputs, kwargs_pair, ignoring["ignore_torch"]
    )
    return tried_mapping(trial, mapping, **ignoring)
