"""Compare two training loops: the first update that differs, and the part of the loop that is the reason."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import optax

from ..._arguments import Count, Positive
from .._exactness import exact
from .averages import average_cause
from .chains import chain_recipe
from .changes import renamed
from .explaining import DEPTH, Explainer
from .fitting import EXACT, SINGLE
from .identifying import Identified, jax_known, torch_known
from .rates import NEAR
from .reading import Unreadable
from .recipe import Arrays, Recipe
from .runs import SHAPES, Run, made_up_gradients, made_up_weights, nested, run_jax

if TYPE_CHECKING:
    import torch

SIDES = (("the first loop", "the second"), ("the second loop", "the first"))
"""The names of two loops of JAX in sentences that start from the recipe of the first, or of the second."""


@dataclass(frozen=True)
class LoopDifference:
    """The first difference of a part: "parameters", or a name that both loops yield. Batches count from 1.

    `torch` is the first loop's number, of two loops of JAX, too.
    """

    part: str
    batch: int
    update: int | None
    leaf: str
    torch: float
    jax: float


@dataclass(frozen=True)
class LoopComparison:
    """Result of `compare_loops`.

    Attributes:
      equal: whether no part differs.
      differences: the first difference of each part, the earliest first.
      causes: sentences that name what differs. Each is proven: torch's loop with this change computes JAX's
        updates. Several are alternatives that these gradients do not tell apart.
      unreached: what the verdict does not cover.
      recipe: torch's loop as data, or why it is not identified.
    """

    equal: bool
    differences: tuple[LoopDifference, ...]
    causes: tuple[str, ...]
    unreached: tuple[str, ...]
    recipe: Recipe | str

    def __str__(self) -> str:
        if self.equal:
            lines = ["The loops are the same."]
        else:
            lines = ["The loops part."]
            for x in self.differences:
                update = f", update {x.update}" if x.update is not None else ""
                leaf = f" of {x.leaf}" if x.leaf else ""
                lines.append(f"  {x.part}{leaf}: batch {x.batch}{update}, {x.torch:.9g} and {x.jax:.9g}")
            heads = itertools.chain(["Because:"], itertools.repeat("or:"))
            lines += [f"  {head} {cause}" for head, cause in zip(heads, self.causes, strict=False)]
            if not self.causes:
                lines.append("  No single change explains the difference.")
        lines += [f"  Not reached: {text}" for text in self.unreached]
        return "\n".join(lines)


def compare_loops(
    torch_loop: Callable[..., Any] | optax.GradientTransformation,
    jax_loop: Callable[..., Any] | optax.GradientTransformation,
    *,
    parameters: torch.nn.Module | Mapping[str, tuple[int, ...]] | None = None,
    names: Mapping[str, str] | None = None,
    batches: Positive = 24,
    infinite: Collection[int] = (),
    seed: Count = 0,
    reference: Literal["torch", "jax"] | None = None,
) -> LoopComparison:
    """Compare two training loops without a model, and name the part that differs.

    Both loops train the same small parameters in float64 on the same made-up gradients, whose norms are on
    both sides of any usual limit: optimizer, schedule, clipping, accumulation, loss scale, weight decay with
    its groups and masks, skipped updates and averages are compared as one thing. If they differ, torch's
    loop is repeated with one change at a time until it computes JAX's updates. The first loop may be one of
    JAX, too: two optax chains are compared without torch.

    Args:
      torch_loop: `loop(model, batches)`, where `model(batch)` is a scalar loss for each batch. Or
        `build(parameters)`, which returns an optimizer, or a tuple of an optimizer and schedulers that step
        after each update. Or a loop of JAX, as the second.
      jax_loop: a generator `loop(parameters, batches)` that yields the parameters after each batch, with
        `linear_loss(parameters, batch)` as its loss; or an optax transformation. Both loops may yield
        `parameters, {"ema": averaged}`: numbers, arrays, or parameters under names of their own.
      parameters: a torch module, or shapes by torch's dotted names; defaults to an embedding, a linear layer
        and a norm.
      names: JAX's dotted paths of parameters that it names differently, by torch's names.
      batches: the number of batches, each one gradient.
      infinite: the indices of batches with an infinite gradient.
      seed: for the gradients.
      reference: the framework of the first loop; "torch" by default, and "jax" for an optax transformation.

    Returns:
      A LoopComparison.

    Raises:
      ValueError: a loop that does not take all batches, or that yields other parameters.
      TypeError: a loop of JAX that yields nothing.

    >>> import optax, torch
    >>> from jaxpar import parity
    >>> comparison = parity.compare_loops(lambda p: torch.optim.AdamW(p, lr=0.01), optax.adamw(0.01))
    >>> comparison.equal, comparison.causes
    (False, ("torch's weight_decay is 0.01 (JAX acts as with 0.0001)",))
    >>> chain = optax.chain(optax.scale_by_adam(eps_root=1e-8), optax.scale(-0.01))
    >>> parity.compare_loops(optax.adam(0.01), chain).causes
    ('the first loop adds eps=1e-08 outside the root alone (the second has eps_root=1e-08, too)',)
    """
    of_jax = reference == "jax" or isinstance(torch_loop, optax.GradientTransformation)
    library: Any = sys.modules.get("torch")
    module: Any = parameters if library and isinstance(parameters, library.nn.Module) else None
    if module is not None:
        shapes: Mapping[str, tuple[int, ...]] = {k: tuple(p.shape) for k, p in module.named_parameters()}
    else:
        shapes = SHAPES if parameters is None else parameters
    _check_arguments(shapes, names or {}, batches, infinite)
    weights = made_up_weights(shapes, seed)
    gradients = made_up_gradients(shapes, batches, seed, infinite)
    with exact():
        if of_jax:
            first = run_jax(torch_loop, {}, weights, gradients)
        else:
            from .torch_runs import run_torch

            first = run_torch(torch_loop, module, weights, gradients)
        second = run_jax(jax_loop, names or {}, weights, gradients)
    for run in (first, second)[not of_jax :]:
        for i, arrays in enumerate(run.weights):
            _check_parameters(arrays, weights, i)
    return _Judge(gradients, first, second, of_jax).comparison()


def _check_arguments(
    shapes: Mapping[str, tuple[int, ...]], names: Mapping[str, str], batches: int, infinite: Collection[int]
) -> None:
    prefixes = {name.rpartition(".")[0] for name in shapes}
    problem = ""
    if not shapes:
        problem = "parameters has none; leave it out, or give a module or shapes with at least one."
    elif both := sorted(prefixes & shapes.keys()):
        problem = f"parameters has {both[0]}, and others below {both[0]}.; a name is a parameter or a module."
    elif unknown := sorted(names.keys() - shapes.keys()):
        problem = f"names has {unknown[0]}, which is not a parameter; there are {', '.join(shapes)}."
    elif any(not 0 <= i < batches for i in infinite):
        problem = f"infinite is {sorted(infinite)}; there are batches 0 to {batches - 1}."
    if problem:
        raise ValueError(f"parity.compare_loops: {problem}")


def _check_parameters(arrays: Arrays, weights: Arrays, batch: int) -> None:
    for name in weights.keys() | arrays.keys():
        shapes = [x[name].shape if name in x else "none of that name" for x in (weights, arrays)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"parity.compare_loops: parameter {name} has shape {shapes[0]}; after batch {batch} JAX's "
                f"loop yields {shapes[1]}. Yield the parameters in the structure in which they came."
            )


class _Judge:
    """Both runs, and the search for what explains their difference."""

    def __init__(self, batches: Sequence[Arrays], reference: Run, candidate: Run, of_jax: bool):
        self.batches, self.torch, self.jax, self.of_jax = batches, reference, candidate, of_jax
        self.rounded = False
        self.identified: Identified | str
        try:
            self.identified = (jax_known if of_jax else torch_known)(reference, batches)
        except Unreadable as error:
            self.identified = str(error)

    def _named(self, text: str) -> str:
        return renamed(text, *SIDES[0]) if self.of_jax else text

    def comparison(self) -> LoopComparison:
        differences: list[LoopDifference] = []
        causes: list[str] = []
        for difference in sorted(self._differences(), key=lambda x: x.batch):
            sentences = self._causes(difference.part)
            if sentences is not None:
                differences.append(difference)
                causes += sentences
        unreached = tuple(map(self._named, self._unreached()))
        recipe = self.identified if isinstance(self.identified, str) else self.identified.recipe
        return LoopComparison(not differences, tuple(differences), tuple(causes), unreached, recipe)

    # ------------------------------------------------------------------------------------------- differences

    def _differences(self) -> Iterator[LoopDifference]:
        travelled = dict.fromkeys(self.torch.weights[0], 0.0)
        for i in range(len(self.batches)):
            for name, x in self.torch.weights[i + 1].items():
                with np.errstate(invalid="ignore"):
                    moved = np.abs(x - self.torch.weights[i][name])
                travelled[name] += float(moved[np.isfinite(moved)].max(initial=0.0))
            difference = self._apart(
                "parameters", i, self.torch.weights[i + 1], self.jax.weights[i + 1], travelled
            )
            if difference:
                yield difference
                break
        for part in self.torch.extras.keys() & self.jax.extras.keys():
            for i, torch_arrays, jax_arrays in self._pairs(part):
                # Numbers, such as a rate, may have been computed in float32.
                sizes = {
                    name: travelled.get(name, 1e3 * float(np.abs(array).max(initial=0.0)))
                    for name, array in torch_arrays.items()
                }
                if difference := self._apart(part, i, torch_arrays, jax_arrays, sizes):
                    yield difference
                    break

    def _pairs(self, part: str) -> Iterator[tuple[int, Arrays, Arrays]]:
        """Yield each batch after which both loops yield a part with the same names and shapes."""
        for i, (x, y) in enumerate(zip(self.torch.extras[part], self.jax.extras[part], strict=False)):
            if x is not None and y is not None and _shapes(x) == _shapes(y):
                yield i, x, y

    def _apart(
        self, part: str, batch: int, torch: Arrays, jax: Arrays, sizes: Mapping[str, float]
    ) -> LoopDifference | None:
        for name, x in torch.items():
            y = jax[name]
            tolerance = EXACT * sizes[name] + 1e-15 * np.abs(x[np.isfinite(x)]).max(initial=0.0)
            with np.errstate(invalid="ignore"):
                unequal = ~((np.abs(x - y) <= tolerance) | (np.isnan(x) & np.isnan(y)) | (x == y))
            if unequal.any():
                at = np.unravel_index(np.argmax(np.where(unequal, np.abs(x - y), -1.0)), np.shape(x))
                groups = [] if isinstance(self.identified, str) else self.identified.groups
                update = next((k for k, group in enumerate(groups) if batch <= group[-1]), None)
                number = None if update is None else update + 1
                return LoopDifference(part, batch + 1, number, name, float(x[at]), float(y[at]))
        return None

    # ------------------------------------------------------------------------------------------------ causes

    def _causes(self, part: str) -> Sequence[str] | None:
        """Return sentences that name why a part differs; None if rounding in JAX's schedule explains it."""
        if part == "parameters":
            return () if isinstance(self.identified, str) else self._parameter_causes(self.identified)
        averages = self.torch.extras[part], self.jax.extras[part]
        if all(x is None or x.keys() == self.torch.weights[0].keys() for x in averages[0]):
            cause = average_cause(averages[0], self.torch, averages[1], self.jax)
            if cause is not None:
                return (self._named(f"{part}: {cause}"),) if cause else None
        return ()

    def _parameter_causes(self, identified: Identified) -> Sequence[str] | None:
        loop, weights = (identified.recipe, identified.groups), self.jax.weights
        if Explainer(self.batches, weights, identified.rates, identified.tolerance).same(*loop):
            self.rounded = identified.tolerance == SINGLE
            return None
        # A single change that fits exactly comes before rounding, which would excuse a small epsilon.
        if causes := self._changes(identified, identified.tolerance, 1):
            return causes
        if Explainer(self.batches, weights, identified.rates, SINGLE).same(*loop):
            self.rounded = True
            return None
        if self._unknown_part():
            return ()
        return self._changes(identified, identified.tolerance, DEPTH) or self._changes(identified, SINGLE, 2)

    def _unknown_part(self) -> str:
        """Return why the only chain of JAX's loop has no recipe, if it has none."""
        if self.of_jax or len(self.jax.transformations) != 1:
            return ""
        weights = self.jax.weights[0]
        try:
            chain_recipe(
                self.jax.transformations[0], nested(weights, {}), {name: name for name in weights}, weights
            )
        except Unreadable as error:
            return str(error)
        return ""

    def _changes(self, identified: Identified, tolerance: float, depth: int) -> Sequence[str]:
        """Return the changes that make the second loop of the first; or of two of JAX, the reverse."""
        explainer = Explainer(self.batches, self.jax.weights, identified.rates, tolerance)
        causes = [*map(self._named, explainer.causes(identified.recipe, identified.groups, depth))]
        if causes or not self.of_jax:
            return causes
        try:
            second = jax_known(self.jax, self.batches)
        except Unreadable:
            return ()
        explainer = Explainer(
            self.batches, self.torch.weights, second.rates, max(tolerance, second.tolerance)
        )
        texts = explainer.causes(second.recipe, second.groups, depth)
        return [renamed(text, *SIDES[1]) for text in texts]

    # --------------------------------------------------------------------------------------------- unreached

    def _unreached(self) -> Iterator[str]:
        for part in sorted(self.torch.extras.keys() ^ self.jax.extras.keys()):
            side = "torch" if part in self.torch.extras else "JAX"
            yield f"{part}, which only {side}'s loop yields"
        for part in sorted(self.torch.extras.keys() & self.jax.extras.keys()):
            count = len(self.batches) - sum(1 for _ in self._pairs(part))
            if count:
                yield f"{part} after {count} batches: not both loops yield it with the same names and shapes"
        if isinstance(self.identified, str):
            loop = "the first loop" if self.of_jax else "torch's loop"
            yield f"{loop} could not be described, so nothing is named: {self.identified}"
            return
        if reason := self._unknown_part():
            yield f"changes of JAX's chain, which could not be described: {reason}"
        if self.rounded:
            yield f"differences below {SINGLE:g} of an update, because one loop computes in float32"
        if not any(not np.isfinite(g).all() for batch in self.batches for g in batch.values()):
            yield "updates with infinite gradients (infinite=[i])"
        rates = [rate for values in self.identified.rates.values() for rate in values if np.isfinite(rate)]
        if rates and np.ptp(rates) <= NEAR * max(rates):
            yield f"schedules: torch's rate is {rates[0]:g} in all {len(self.identified.groups)} updates"


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(x) for name, x in arrays.items()}
