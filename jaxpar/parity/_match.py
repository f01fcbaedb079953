"""match: a mapping to start from, guessed by names, kinds, shapes and order, and tried on an example."""

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
    """A mapping to start from, where torch's names and Flax's paths disagree.

    Names that agree are not in it. Leftovers of both sides are paired by the order of layers of the same
    kind and shape, if there are as many here as there; each such line is a guess and says so. Look at it,
    edit it, and pass it to `load_torch`, which never guesses.

    With an `example` both models run on it, torch's with random weights. The order is that of the calls then,
    and the guesses are exchanged until the outputs agree. What the outputs do not decide is said.

    Args:
      flax_module: an NNX module, or a Linen module with `inputs` or an `example`.
      torch_module: a torch module, a state_dict, or a path.
      mapping: what is known already; it is part of the result.
      ignore_torch, ignore_flax: names that are left out, as in `load_torch`.
      inputs, kwargs: arguments of one call of a Linen module; shapes are enough.
      example: the inputs of one call, in torch's layout, as for `compare`; it needs two modules with values.
      torch_inputs, flax_inputs: instead of an example, where the two sides take different things.
      outputs: by which it is decided, as for `compare`; all if left out.
      layout, torch_kwargs: of the example, as for `compare`, which calls `kwargs` flax_kwargs.

    Returns:
      A Mapping: a dict that prints as one, with what stays unmatched and what is ambiguous as comments.

    Raises:
      TypeError: an example without a torch module, or a Flax module without values.
    """
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
