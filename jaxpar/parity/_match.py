"""match: guess a mapping from names, kinds, shapes and order, and try it on random weights or an example."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from flax import linen

from ..errors import MatchError
from ._divergence.array_changes import relative_error
from ._exactness import exact
from ._model_pair import (
    Inputs,
    ModelInputs,
    Outputs,
    in_float32,
    output_pairs,
    variable_shapes,
    zero_variables,
)
from ._sides.candidate import candidate_side
from ._sides.flax_mode import of_init
from ._sides.step_data import Layout, Task, noting_layout
from ._sides.torch_side import TorchSide
from ._weights import Links, links_of
from ._weights import Mapping as GuessedMapping
from ._weights.guesses import Guesses
from ._weights.mapping import Entries, ignored
from ._weights.pytree_model import as_flax
from ._weights.source import TorchWeights, source_of
from ._weights.suggest import Calls, LayerGroup
from ._weights.torch_tree import candidate_tree
from ._weights.tree import FlaxModule, JaxModel, Variables


def match(
    flax_module: JaxModel,
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
      flax_module: an NNX module, a Linen module with `inputs` or an `example`, or a second torch module.
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
    flax_module = as_flax(flax_module)
    ignoring: dict[str, Any] = {"ignore_torch": tuple(ignore_torch), "ignore_flax": tuple(ignore_flax)}
    examples = example, torch_inputs, flax_inputs
    if all(argument is None for argument in examples):
        tree = candidate_tree(flax_module, inputs, kwargs)
        return Guesses(tree, source_of(torch_module), mapping, **ignoring).mapping()

    kwargs_pair = torch_kwargs, kwargs
    trial = MappingTrial(
        flax_module, torch_module, examples, layout, outputs, kwargs_pair, ignoring["ignore_torch"]
    )
    return tried_mapping(trial, mapping, **ignoring)


# torch's weights are randomized first: freshly initialized layers hold equal ones and zeros, so that any
# order would fit. Each pair of guesses is also exchanged, and reported as ambiguous if the outputs stay the
# same. Groups, and the index of the axis order for each array with several possible ones.
Attempt = tuple[Sequence[LayerGroup], tuple[int, ...]]
FITS = 1e-6  # the error up to which outputs agree; a wrong order of random weights moves them much farther
MOST_ORDERS, MOST_EXCHANGES = 64, 64
# Four layers have 4! - 1 = 23 further orders; five would have 119, more than MOST_ORDERS. In larger groups
# only neighbours are exchanged.
SMALL = 4


class MappingTrial:
    """Both models on one example in float64, with random weights; `calls` are the layers' orders of calls."""

    def __init__(
        self,
        flax_module: FlaxModule,
        torch_module: Any,
        examples: tuple[Inputs, Inputs, Inputs],
        layout: str | tuple[str, str] | Layout,
        outputs: Outputs | None,
        kwargs: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None],
        ignore_torch: Iterable[str] = (),
    ):
        if not isinstance(torch_module, torch.nn.Module):
            raise TypeError(
                f"parity.match: an example is for two models; {type(torch_module).__name__} cannot be called."
            )
        self.flax_module, self.torch_module = flax_module, _shaken(torch_module, ignore_torch)
        self.task = Task(training=False, layout=Layout.parse(layout), outputs=output_pairs(outputs))
        calls = ModelInputs(flax_module, self.task, examples, kwargs, function="match")
        self.batch = calls.batch(1)
        images = self.batch.torch_call.arrays.values()
        self.task = dataclasses.replace(self.task, layout=self.task.layout.of_outputs(images))
        call = in_float32(self.batch.flax_call)
        self.call: dict[str, Any] = {"inputs": call.args, "kwargs": of_init(flax_module, call.kwargs)}
        with noting_layout(self.task.layout, call):
            is_linen = isinstance(flax_module, linen.Module)
            variables = variable_shapes(flax_module, call) if is_linen else None
            self.tree = candidate_tree(flax_module, **self.call, variables=variables)
            variables = self._variables()
        with exact():
            self.side = candidate_side(flax_module, self.task, "float64", variables)
            torch_outputs = self._run_torch()
            with noting_layout(self.task.layout, call):
                self.outputs, self.calls = torch_outputs, self._flax_calls()

    def orders(self, bare: Any) -> Calls:
        """Return both orders of calls, with torch's paths stripped by `bare`."""
        torch_calls, flax_calls = self.calls
        return {bare(path): i for path, i in torch_calls.items()}, flax_calls

    def error(self, entries: Entries, ignore_torch: Iterable[str], ignore_flax: Iterable[str]) -> float:
        """Return the largest relative error of an output with this mapping; inf if the mapping is invalid."""
        try:
            links = links_of(
                self.flax_module,
                self.torch_module,
                mapping=entries,
                ignore_torch=ignore_torch,
                ignore_flax=ignore_flax,
                **self.call,
                function="parity.match",
            )
        except MatchError:
            return np.inf
        # The restarted side shares its compiled step, so an attempt costs a run and no compilation.
        with exact():
            reference = TorchSide(self.torch_module, links, self.task, "float64")
            side = self.side.restarted()
            side.load(reference.weights(), reference.state())
            flax_outputs = side.step(self.batch, keep=False).outputs
        common = [name for name in self.outputs if name in flax_outputs]
        return max(
            (relative_error(flax_outputs[name], self.outputs[name]) for name in common), default=np.inf
        )

    def _variables(self) -> Variables | None:
        """Return zeros for a Linen module, in the dtypes of the user's settings; None for NNX."""
        if isinstance(self.flax_module, linen.Module):
            return zero_variables(self.flax_module, self.batch.flax_call)
        if any(isinstance(x, jax.ShapeDtypeStruct) for x in self.tree.values().values()):
            raise TypeError("parity.match: an example is for a Flax module with values; this one has shapes.")
        return None

    def _run_torch(self) -> dict[str, np.ndarray]:
        self._order: dict[str, int] = {}
        # No links: they are what the trial searches for, and outputs need none.
        side = TorchSide(self.torch_module, Links((), {}), self.task, "float64")
        return side.step(self.batch, _noting(side.module, self._order), forward_only=True).outputs

    def _flax_calls(self) -> Calls:
        return self._order, self.side.intercepted(self.batch, (), None, lambda _: _Order())[0]


class _Order:
    """A handler of calls, whose records are the layers in the order of their first calls."""

    def __init__(self) -> None:
        self.records: dict[str, int] = {}

    def __call__(self, path: str, layer: Any, call: Any, args: tuple, kwargs: dict) -> Any:
        self.records.setdefault(path, len(self.records))
        return call(*args, **kwargs)


def tried_mapping(
    trial: MappingTrial, mapping: Entries | None, ignore_torch: Iterable[str], ignore_flax: Iterable[str]
) -> GuessedMapping:
    """Return the first mapping whose outputs agree, with notes on the attempts."""
    ignoring: dict[str, Any] = {"ignore_torch": tuple(ignore_torch), "ignore_flax": tuple(ignore_flax)}
    torch_source = source_of(trial.torch_module)
    plain = Guesses(trial.tree, torch_source, mapping, **ignoring)
    orders = trial.orders(plain.bare)
    errors: list[float] = []
    for heads in plain.heads():
        guesses = Guesses(trial.tree, torch_source, mapping, **ignoring, calls=orders, interleaved=heads)
        if guesses.mapping().unmatched:
            return guesses.mapping(notes=("the guesses were not tried, because some names are unmatched",))

        def error(attempt: Attempt, guesses: Guesses = guesses) -> float:
            return trial.error(guesses.mapping(attempt[0], choices=attempt[1]), **ignoring)

        for attempt in itertools.islice(_attempts(plain.groups, guesses), MOST_ORDERS):
            errors.append(error(attempt))
            if errors[-1] <= FITS:
                notes = tuple(_notes(guesses, attempt, errors, error))
                return guesses.mapping(attempt[0], notes, attempt[1])
    guesses = Guesses(trial.tree, torch_source, mapping, **ignoring, calls=orders)
    text = f"tried in {len(errors)} ways, and none fits: the outputs are {min(errors):.2g} apart or more"
    return guesses.mapping(notes=(f"{text}. The models differ, or a guess is wrong",))


def _attempts(named: Sequence[LayerGroup], guesses: Guesses) -> Iterator[Attempt]:
    """Yield each order of layers, combined with each axis order of single arrays."""
    for groups in _orders(named, guesses.groups):
        axis_choices = [range(len(turn.axes)) for turn in guesses.turns(groups)]
        yield from ((groups, choices) for choices in itertools.product(*axis_choices))


def _notes(
    guesses: Guesses, fitting: Attempt, errors: Sequence[float], error: Callable[[Attempt], float]
) -> Iterator[str]:
    """Yield a note that the guesses fit, and one for each guess that could be exchanged."""
    groups, choices = fitting
    yield f"tried: with random weights the outputs agree, {errors[-1]:.2g} apart"
    exchanges: list[tuple[Sequence[str], Sequence[LayerGroup]]] = [
        (group.torch[index : index + 2], [*groups[:i], _with(group, other), *groups[i + 1 :]])
        for i, group in enumerate(groups)
        for index, other in _neighbours(group.flax)
    ]
    for names, other in exchanges[:MOST_EXCHANGES]:
        if error((other, choices)) <= FITS:
            yield f"ambiguous: {' and '.join(names)} may be exchanged, and the outputs stay the same"
    if len(exchanges) > MOST_EXCHANGES:
        yield f"{len(exchanges) - MOST_EXCHANGES} of {len(exchanges)} exchanges were not tried"
    for i, turn in enumerate(guesses.turns(groups)):
        other_way = (*choices[:i], 1 - choices[i], *choices[i + 1 :])
        if len(turn.axes) > 1 and error((groups, other_way)) <= FITS:
            yield f"ambiguous: {turn.pairs[0][0]} may lie as {turn.axes[1 - choices[i]]} as well"


def _orders(named: Sequence[LayerGroup], called: Sequence[LayerGroup]) -> Iterator[Sequence[LayerGroup]]:
    """Yield the order of calls, the order of definition, and then orders with one group rearranged."""
    yield called
    if named != called:
        yield named
    for i, group in enumerate(called):
        if 1 < len(group.flax) <= SMALL:
            others = [list(order) for order in itertools.permutations(group.flax)][1:]
        else:
            others = [other for _, other in _neighbours(group.flax)]
        for other in others:
            yield [*called[:i], _with(group, other), *called[i + 1 :]]


def _neighbours(paths: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    for i in range(len(paths) - 1):
        yield i, [*paths[:i], paths[i + 1], paths[i], *paths[i + 2 :]]


def _with(group: LayerGroup, flax: Iterable[str]) -> LayerGroup:
    return LayerGroup(group.torch, tuple(flax), group.reasons)


def _shaken(module: torch.nn.Module, ignore: Iterable[str]) -> torch.nn.Module:
    """Return a copy with noise added to its weights, in proportion to their size."""
    shaken = copy.deepcopy(module).to("cpu")
    ignored_names, _ = ignored(shaken.state_dict(), ignore, "ignore_torch")
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in shaken.named_parameters():
            # Ignored parameters are computed in Flax, such as a table of sines, and must keep their values.
            if name not in ignored_names and tensor.is_floating_point() and tensor.numel():
                # At least 0.05: noise in proportion to a bias of zeros would leave it as it is.
                size = tensor.square().mean().sqrt().clamp(0.05, 1.0)
                noise = torch.randn(tensor.shape, generator=random, dtype=torch.float64)
                tensor.add_((0.5 * size * noise).to(tensor.dtype))
    return shaken


@contextmanager
def _noting(module: torch.nn.Module, order: dict[str, int]) -> Iterator[None]:
    def note(path: str, layer: torch.nn.Module, args: tuple) -> None:
        order.setdefault(path, len(order))

    hooks = [layer.register_forward_pre_hook(partial(note, path)) for path, layer in module.named_modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
