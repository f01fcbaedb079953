"""Name the types that make two models differ: run Flax's operations in torch's types until both agree.

    torch's step, read ──┐
    Flax's step, read ───┴► type differences ─► Flax with all of torch's types: do both agree?
                                                     │ yes: take one difference back at a time
                                                     │      still agree ─► harmless, otherwise ─► cause
                                                     └ no:  those that move Flax's numbers are guesses

Both agree if each tensor is as close as rounding allows: weights and inputs that are moved by one rounding
measure that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from ._comparison import Comparison
from ._comparison_data import Cause, Divergence
from ._levels import Batches
from ._model_pair import ModelPair
from ._runs.operation_types import FLOATS, TypeDifference, asked_precisions, differences, together
from ._sides.flax_side import FlaxSide
from ._sides.jax_in_types import JaxTypes
from ._sides.step_data import OWN, PARTS, Batch, Named, Observation
from ._sides.torch_side import TorchSide
from ._tensors import widened
from .measuring import Outcome

SEEDS = (1, 2, 3)
FACTOR = 16.0  # times what a rounding of weights and inputs does is rounding, as `bisect` has it
FLOOR = 2.0**-17  # relative; 64 roundings of float32
MOVED = 64  # one of so many 16-bit numbers moves: one in 256 results of float32 is rounded to the other side
UNIT = 2.0**-23
UPDATES = 2.0**-14  # the floor of updates: optax has 1 - 0.999**step in float32, torch in float64
CLOSER = 8.0  # times as close a smaller type of torch's has to bring outputs and loss
BACKWARD = 8.0  # roundings of torch's type by which its gradients may differ
BACKWARDS = ("input_gradients", "gradients", "weights")
MEMORY = "moments"
PARAMETERS = "parameters"

Distances = dict[tuple[int, str, str], float]


@dataclasses.dataclass(frozen=True)
class _Judged:
    difference: TypeDifference
    verdict: str  # "cause", "harmless" or "guess"


def explain_by_precision(pair: ModelPair, batches: Batches, dtype: str, compared: Comparison) -> Comparison:
    """Return the comparison with notes on the types that differ, and with the causes among them."""
    run = _TypedRuns(pair, batches, dtype, compared)
    notes = list(run.requested())
    if not run.type_differences:
        return dataclasses.replace(compared, notes=(*compared.notes, *notes))
    judged, before, after = run.judged()
    causes = [*together(x.difference for x in judged if x.verdict == "cause")]
    texts = [x.text("in JAX", "in torch") for x in causes]
    notes += [
        f"precision: {text}: this is why they are {before:.1g} apart; in torch's types {after:.1g}"
        for text in texts
    ]
    for verdict, reason in (
        ("guess", "this may be a reason, and is not proven: other differences remain in torch's types"),
        ("harmless", "harmless here: no tensor moves by more than rounding"),
    ):
        joined = together(x.difference for x in judged if x.verdict == verdict)
        notes += [f"precision: {x.text('in JAX', 'in torch')}: {reason}" for x in joined]
    result = dataclasses.replace(compared, notes=(*compared.notes, *notes))
    if compared.same or not causes or compared.divergence:
        return result
    where = f"Operations run in other types; in torch's, both agree to {after:.1g}."
    flax, torch = (next((x for x in causes[0].where[side] if x), "the model") for side in (0, 1))
    proven = tuple(Cause(f"run in torch's types: {text}", after) for text in texts)
    return dataclasses.replace(result, divergence=Divergence(torch, flax, "precision", where, proven))


class _TypedRuns:
    """Torch's observations of some steps, and Flax's with any types."""

    def __init__(self, pair: ModelPair, batches: Batches, dtype: str, compared: Comparison):
        from ._runs.torch_types import TorchTypes

        self.pair, self.dtype = pair, dtype
        self.steps = 2 if pair.task.optimizer else 1
        self.noise = {row.difference.name for row in compared.rows if row.outcome is Outcome.NOISE}
        self.batches = [batches(number) for number in range(1, self.steps + 1)]
        reference = pair.reference(dtype)
        self.start = reference.weights(), reference.state()
        reading = TorchTypes(reference.module)
        self.torch = [reference.step(self.batches[0], reading)]
        self.torch += [reference.step(batch) for batch in self.batches[1:]]
        self.sides: dict[Any, FlaxSide] = {}
        """Flax's sides by their types, each of which is compiled once."""
        self.flax = cast("FlaxSide", pair.candidate(pair.reference(dtype)))  # a Request sees to it
        types = JaxTypes()
        self.base = self.stepped(types)
        self.types = types.operations, tuple(reading.rows)
        self.type_differences = [*differences(*self.types), *self._kept(reference)]

    def requested(self) -> Iterator[str]:
        requested = asked_precisions(*self.types) if self.dtype == OWN else []
        if requested:
            yield (
                f"precision of float32 products: JAX asks for {requested[0]} and torch for {requested[1]}; "
                "on a CPU both are float32, on GPUs and TPUs they may be TF32 or bfloat16"
            )

    def _kept(self, reference: TorchSide) -> Iterator[TypeDifference]:
        """Yield where the types differ in which parameters and the optimizer's state are kept."""
        weights = self.flax.weights()
        types = _types(weights.values()), _types(self.start[0].values())
        if types[0] and types[1] and types[0] != types[1]:
            names = tuple(name for name, x in weights.items() if str(x.dtype) != types[1])
            yield TypeDifference((PARAMETERS,), types[0], types[1], (names, ()), stored=True)
        if reference.optimizer and self.flax.tx:
            import jax

            tensors = [x for state in reference.optimizer.state.values() for x in state.values()]
            torchs = _types(x for x in tensors if getattr(x, "ndim", 0))
            flaxs = _types(x for x in jax.tree.leaves(self.flax.opt_state) if getattr(x, "ndim", 0))
            if torchs and flaxs and torchs != flaxs:
                yield TypeDifference((MEMORY,), flaxs, torchs, ((), ()), stored=True)

    def stepped(self, types: JaxTypes, parameters: str | None = None, seed: int = 0) -> list[Observation]:
        key = (tuple(types.changes.items()), types.memory, parameters)
        if key not in self.sides:
            self.sides[key] = self.flax.in_types(types, parameters)
        side = self.sides[key].restarted()
        weights, state = self.start
        if self.pair.weights == "torch":
            side.load(_nudged(weights, seed), state)
        return [
            side.step(_nudged_batch(batch, seed), observed.masks)
            for batch, observed in zip(self.batches, self.torch, strict=True)
        ]

    def with_torchs(self, exchanged: Sequence[TypeDifference], seed: int = 0) -> list[Observation]:
        """Return Flax's steps with torch's types for these differences."""
        changes = {i: x.to for x in exchanged for i in x.indices}
        stored = {x.operations[0]: x.b for x in exchanged if not x.indices}
        return self.stepped(JaxTypes(changes, stored.get(MEMORY)), stored.get(PARAMETERS), seed)

    def judged(self) -> tuple[list[_Judged], float, float]:
        """Return the verdicts, and both sides' distance as they run and in torch's types."""
        can_change = [x for x in self.type_differences if x.indices or x.stored]
        every = self.with_torchs(can_change)
        before, after = self.distances(self.base, self.torch), self.distances(every, self.torch)
        bounds = self._bounds(can_change, every, before)
        put_back = dict(bounds)
        if _bits(can_change) < FLOATS["float32"]:
            # The distance in torch's types is the best measure of how its type rounds.
            put_back |= {
                key: max(FLOOR, 4 * far, before[key] / CLOSER)
                for key, far in after.items()
                if key in before and key[1] not in BACKWARDS
            }
        # Of the tensors that disagree, the forward pass's: gradients are a consequence.
        disagreeing = [key for key, far in before.items() if far > put_back.get(key, _floor(key))]
        shown = [key for key in disagreeing if key[1] not in BACKWARDS] or disagreeing
        largest = tuple(max((x.get(key, 0.0) for key in shown), default=0.0) for x in (before, after))
        verdicts: dict[int, str] = {}
        exchanged = list(can_change)
        agree = _within(after, bounds)
        for x in can_change:
            others = [y for y in exchanged if y is not x]
            if not agree:
                moved = self.distances(self.with_torchs([x]), self.base)
                verdicts[id(x)] = "harmless" if _within(moved, bounds) else "guess"
            elif _within(self.distances(self.with_torchs(others), self.torch), put_back):
                verdicts[id(x)], exchanged = "harmless", others
            else:
                verdicts[id(x)] = "cause"
        unchanged = "harmless" if agree else "guess"
        return (
            [_Judged(x, verdicts.get(id(x), unchanged)) for x in self.type_differences],
            largest[0],
            largest[1],
        )

    def _bounds(
        self, exchanged: Sequence[TypeDifference], every: list[Observation], before: Distances
    ) -> Distances:
        bits = _bits(exchanged)
        is_narrow = bits < FLOATS["float32"]
        bounds: Distances = {}
        if is_narrow:
            # A result halfway between two numbers of the type is rounded to either. torch's backward kernels
            # add up 16-bit numbers in their own order, and Flax's program adds in float32.
            backward = BACKWARD * 2.0**-bits
            bounds = {k: far / CLOSER for k, far in before.items()}
            bounds |= {k: backward * share for k, share in self._shares().items()}
        for seed in SEEDS:
            for key, far in self.distances(self.with_torchs(exchanged, seed), every).items():
                rounding = FACTOR * far / (4 if is_narrow else 1)
                bounds[key] = max(_floor(key), rounding, bounds.get(key, 0.0))
        return bounds

    def _shares(self) -> Distances:
        """Return how many times a gradient the largest one is: in 16 bits, a gradient of 0 is noise."""
        shares: Distances = {}
        for step, observed in enumerate(self.torch):
            for part in BACKWARDS:
                sizes = {
                    name: _size(widened(x)) for name, x in getattr(observed, part).items() if _is_float(x)
                }
                largest = max(sizes.values(), default=0.0)
                shares |= {(step, part, name): largest / size for name, size in sizes.items() if size}
        return shares

    def distances(self, one: list[Observation], other: list[Observation]) -> Distances:
        """Return |a - b| / |b| of each tensor; of weights, of their updates."""
        measured: Distances = {}
        for step, (a, b) in enumerate(zip(one, other, strict=True)):
            for part in PARTS if self.pair.task.optimizer else PARTS[:-1]:
                before: Named = self.start[0] if part == "weights" else {}
                for name, y in getattr(b, part).items():
                    x = getattr(a, part).get(name)
                    # Behind a parameter whose gradient is noise everything is compared but its own.
                    if x is None or x.shape != y.shape or not _is_float(y) or name in self.noise:
                        continue
                    origin = widened(before[name]) if name in before else 0.0
                    size, far = _size(widened(y) - origin), _size(widened(x) - widened(y), part == "weights")
                    if part == "weights":
                        far = max(0.0, far - UNIT * _size(widened(y)))  # an update is a difference of weights
                    if size:
                        measured[step, part, name] = far / size
        return measured


def _size(x: np.ndarray, robust: bool = False) -> float:
    """Return the root mean square; `robust` leaves out a quarter: Adam turns rounding into updates."""
    return float(np.quantile(np.abs(x), 0.75)) if robust else float(np.sqrt(np.square(x).mean()))


def _bits(rows: Sequence[TypeDifference]) -> int:
    """Return the significant bits of torch's smallest type."""
    return min((FLOATS[name] for x in rows for name in x.to), default=FLOATS["float32"])


def _floor(key: tuple[int, str, str]) -> float:
    return UPDATES if key[1] == "weights" else FLOOR


def _within(distances: Distances, bounds: Distances) -> bool:
    return all(far <= bounds.get(key, _floor(key)) for key, far in distances.items())


def _types(arrays: Any) -> str:
    """Return the narrowest floating type of some arrays."""
    names = [str(x.dtype).removeprefix("torch.") for x in arrays]
    return min((name for name in names if name in FLOATS), key=lambda name: FLOATS[name], default="")


def _is_float(x: np.ndarray) -> bool:
    return str(x.dtype) in FLOATS


def _nudged(named: Named, seed: int) -> Named:
    return {name: _nudge(x, seed + i) for i, (name, x) in enumerate(named.items())} if seed else named


def _nudged_batch(batch: Batch, seed: int) -> Batch:
    if not seed:
        return batch
    return dataclasses.replace(batch, flax_call=batch.flax_call.map(lambda x: _nudge(x, seed)))


def _nudge(x: np.ndarray, seed: int) -> np.ndarray:
    """Move numbers by one rounding; of 16-bit numbers a few, as results of float32 that are rounded again."""
    if not _is_float(x):
        return x
    random = np.random.RandomState([seed, x.size])
    unit = 2.0 ** -FLOATS[str(x.dtype)]
    signs = random.choice([-1.0, 1.0], x.shape)
    if FLOATS[str(x.dtype)] < FLOATS["float32"]:
        signs = np.where(random.randint(MOVED, size=x.shape) == 0, 2 * signs, 0.0)
    return np.asarray(widened(x) * (1 + unit * signs)).astype(x.dtype)
