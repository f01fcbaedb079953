"""ModelPair: the two modules under comparison, their links, their arguments, and a factory of sides."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from ._exactness import as_it_runs
from ._levels import Sides
from ._sides.call_arguments import AsArray, Call, to_array
from ._sides.candidate import Candidate, candidate_side
from ._sides.constants import Constants
from ._sides.flax_mode import flags, in_mode, of_init
from ._sides.step_data import OWN, Batch, Move, Task, noting_layout, same, to_channels_last
from ._weights import Links, links_of
from ._weights.load_torch import with_buffers
from ._weights.source import TorchWeights, source_of
from ._weights.tree import FlaxModule, Variables
from .measuring import Key, Level

if TYPE_CHECKING:
    import torch

    from ._sides.torch_side import TorchSide


@dataclasses.dataclass(frozen=True)
class ModelPair:
    torch_module: torch.nn.Module
    flax_module: FlaxModule
    variables: Variables | None  # a Linen module's; zeros if torch's weights are loaded
    task: Task
    links: Links  # the torch tensors of each Flax leaf
    weights: str  # "torch" if Flax gets torch's weights, "own" if each module keeps its own
    # One Flax side per dtype, so that later sides reuse its compiled step.
    _candidates: dict[str, Candidate] = dataclasses.field(default_factory=dict, compare=False)

    def reference(self, dtype: str, constants: Constants | None = None) -> TorchSide:
        from ._sides.torch_side import TorchSide  # torch, which a trace does without

        return TorchSide(self.torch_module, self.links, self.task, dtype, constants)

    def recorded_perturbations(self, keeps_ties: bool) -> Mapping[Key, tuple[float, float]] | None:
        """Return what rounding does to torch's tensors if it was recorded, or None."""
        return None

    def recorded_moves(self) -> Mapping[Key, float]:
        """Return how far rounding constants moves a recorded JAX model's tensors; nothing for others."""
        return {}

    def candidate(self, reference: TorchSide, constants: Constants | None = None) -> Candidate:
        """Return Flax's side in the reference's dtype, with its weights unless both have their own."""
        dtype = reference.dtype
        if constants is not None:
            side = self._candidate(dtype, constants)
        else:
            if dtype not in self._candidates:
                self._candidates[dtype] = self._candidate(dtype)
            side = self._candidates[dtype].restarted()
        if self.weights == "torch":
            side.load(reference.weights(), reference.state())
        return side

    def _candidate(self, dtype: str, constants: Constants | None = None) -> Candidate:
        ignored = self.links.ignored
        return candidate_side(
            self.flax_module, self.task, dtype, self.variables, ignored=ignored, constants=constants
        )

    def sides(self, level: Level, dtype: str) -> Sides[TorchSide]:
        """Return the sides of a level, all with the same weights."""
        if level is Level.SEMANTIC:
            reference = self.reference("float64")
            single = functools.partial(self.reference, "float32")
            return Sides(reference, self.candidate(reference), single=single)
        reference = self.reference(OWN if level is Level.AS_IT_RUNS else dtype)
        oracle = self.reference("float64")
        # The oracle starts from the rounded weights, so that rounding them counts as neither side's error.
        oracle.continue_from(reference)
        return Sides(reference, self.candidate(reference), oracle)


def linked(
    module: FlaxModule,
    source: TorchWeights,
    call: Call,
    variables: Variables | None,
    task: Task,
    function: str,
    fill: bool = True,
    **options: Any,
) -> tuple[Links, Variables | None]:
    """Return the links, and a Linen module's variables, by default zeros if they are not given."""
    if isinstance(module, linen.Module) and variables is None and fill:
        with as_it_runs(), noting_layout(task.layout, call):
            variables = zero_variables(module, call)
    call = in_float32(call)
    # With the user's settings: where float64 is enabled, as in `exact`, traced leaves could have dtypes that
    # the user's model does not have.
    with as_it_runs(), noting_layout(task.layout, call):
        links = links_of(
            module,
            source,
            inputs=call.args,
            kwargs=of_init(module, call.kwargs),
            variables=variables,
            function=function,
            **options,
        )
    return with_buffers(module, links, source_of(source).buffers), variables


# inputs ───────► torch's call ──────────────────────────────► Batch.torch_call
#        └layout► Flax's call ──mode, dropout's stream───────► Batch.flax_call
# torch_inputs and flax_inputs replace inputs where the two sides take different arguments.
Inputs = Any  # as `compare` documents them
Outputs = str | int | Sequence[str | int] | Mapping[str | int, str | int]
Kwargs = Mapping[str, Any] | None
T = TypeVar("T")
IN_PLACE = ("used in an in-place operation", "modified by an inplace operation", "being modified inplace")
"""Parts of torch's errors where it cannot differentiate by a tensor."""


class ModelInputs:
    """Builds both sides' calls for every step, from the common inputs, torch's and Flax's."""

    def __init__(
        self,
        module: FlaxModule,
        task: Task,
        inputs: tuple[Inputs, Inputs, Inputs],
        kwargs: tuple[Kwargs, Kwargs],
        as_array: AsArray = to_array,
        function: str = "compare",
    ):
        has_common, has_torch, has_flax = (x is not None for x in inputs)
        if has_common == (has_torch and has_flax):
            which = "all three" if has_common else "none"
            raise TypeError(
                f"parity.{function}: {which} of inputs, torch_inputs and flax_inputs are given. Give inputs "
                "where both sides take the same, else torch_inputs and flax_inputs."
            )
        self.module, self.task, self.inputs, self.kwargs = module, task, inputs, kwargs
        self.as_array = as_array
        self.have_gradients = True  # whether torch can differentiate by the inputs

    def batch(self, step: int) -> Batch:
        """Return the calls of a step, without targets."""
        both, torchs, flaxs = (x(step) if callable(x) else x for x in self.inputs)
        torch_call = self._call(both if torchs is None else torchs, self.kwargs[0])
        layout = self.task.layout.inputs
        if flaxs is None:
            common_call, moved = self._call(both, None), self._call(both, None).map(layout)
            # After the change of layout: `flax_kwargs` are in Flax's layout already.
            flax_call = moved.with_kwargs(self._call((), self.kwargs[1]))
        else:
            common_call, flax_call = None, self._call(flaxs, self.kwargs[1])
        shared = set(common_call.arrays) if common_call and torchs is None else set()
        common = _common(torch_call, flax_call, layout, shared) if self.have_gradients else {}
        return Batch(torch_call, in_mode(self.module, flax_call, self.task), common=common)

    def notes(self) -> list[str]:
        """Describe the choices made on the user's behalf, for the report."""
        batch = self.batch(1)
        calls = [self._call(x(1) if callable(x) else x, self.kwargs[1]) for x in self.inputs if x is not None]
        mode_flags = flags(self.module, calls[-1], self.task.training)
        notes = [f"Flax is called with {name}={value}, as the mode is" for name, value in mode_flags.items()]
        floating = [
            name for name, x in batch.torch_call.arrays.items() if jnp.issubdtype(x.dtype, jnp.floating)
        ]
        alone = [name for name in floating if name not in batch.common]
        if alone and not self.have_gradients:
            notes.append(
                f"the gradients of inputs ({', '.join(alone)}) are not compared: torch cannot compute them, "
                "because its code writes over what they need"
            )
        elif alone:
            notes.append(
                f"the gradient of torch's {', '.join(alone)} is not compared: Flax is given no such numbers"
            )
        return notes

    def with_available_gradients(self, steps: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Yield the steps, without gradients of inputs where torch's first step shows that it has none.

        A model that writes to its inputs, as in `x /= x.std()`, trains all the same.
        """
        has_begun = False
        try:
            for step in steps():
                has_begun = True
                yield step
            return
        except RuntimeError as error:
            if has_begun or not any(text in str(error) for text in IN_PLACE):
                raise
        self.have_gradients = False
        yield from steps()

    def _call(self, inputs: Any, kwargs: Kwargs) -> Call:
        return Call.of(inputs, kwargs, self.as_array)


def _common(torch_call: Call, flax_call: Call, layout: Move, shared: set[str]) -> dict[str, tuple[str, Move]]:
    """Map each floating input of torch to its name in Flax and the layout change between the two."""
    counterparts: dict[str, tuple[str, Move]] = {}
    unpaired = {name: x for name, x in flax_call.arrays.items() if jnp.issubdtype(x.dtype, jnp.floating)}
    for name, x in torch_call.arrays.items():
        if not jnp.issubdtype(x.dtype, jnp.floating):
            continue
        # Inputs passed separately have no declared layout, so their values decide which change relates them.
        moves = [layout] if name in shared else [layout, same, to_channels_last]
        # The same name first: two arrays may hold the same numbers, as zeros do.
        for other in sorted(unpaired, key=lambda candidate: candidate != name):
            move = next((move for move in moves if _equal(move(x), unpaired[other])), None)
            if move is not None:
                counterparts[name] = other, move
                del unpaired[other]
                break
    return counterparts


def _equal(x: np.ndarray, y: np.ndarray) -> bool:
    return x.shape == y.shape and np.array_equal(x.astype(np.float64), y.astype(np.float64), equal_nan=True)


def output_pairs(outputs: Outputs | None) -> dict[str, str] | None:
    """Return Flax's name for each of torch's output names, or None to compare all outputs."""
    if outputs is None:
        return None
    if isinstance(outputs, Mapping):
        pairs = {str(torch_name): str(flax_name) for torch_name, flax_name in outputs.items()}
    else:
        names = [outputs] if isinstance(outputs, (str, int)) else outputs
        pairs = {str(name): str(name) for name in names}
    if not pairs or len(set(pairs.values())) < len(pairs):
        raise ValueError(
            f"parity.compare: outputs={outputs!r} names nothing, or one output twice. Give names, such as "
            "['logits'], or torch's with Flax's, such as {'logits': '[0]'}."
        )
    return pairs


def zero_variables(module: linen.Module, call: Call) -> Variables:
    """Return a Linen module's variables filled with zeros, without running its initializers."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), variable_shapes(module, call))


def variable_shapes(module: linen.Module, call: Call) -> Any:
    def init(call: Call) -> Variables:  # inside eval_shape, for models that test isinstance(x, jax.Array)
        streams = call.kwargs.get("rngs", {})
        streams = streams if isinstance(streams, dict) else {}
        rngs = {"params": jax.random.key(0), "dropout": jax.random.key(0), **streams}
        return module.init(rngs, *call.args, **of_init(module, call.kwargs))

    return jax.eval_shape(init, in_float32(call))


def in_float32(call: Call) -> Call:
    # For tracing shapes. float64 is NumPy's default rather than the user's choice, and it would break the
    # initialization of a model that starts a scan from float32 zeros.
    return call.map(lambda x: x.astype(np.float32) if x.dtype == np.float64 else x)
