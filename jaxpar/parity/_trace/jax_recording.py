"""record_jax: record what a JAX model computes, to be judged where torch is and the model's code is not.

Names and layouts are the model's own; the judge converts them. Dropout masks are drawn by NumPy, and torch
gets them from the judge.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._typing import PyTree
from ..._upstream import get_opaque_trace_state
from .._determinism import check_flax
from .._divergence.flax_replay import by_keyword
from .._exactness import environment, exact
from .._float32_constants import moved_by_constants
from .._levels import LevelStep
from .._model_pair import Inputs, ModelInputs, Outputs, in_float32, output_pairs
from .._reach import NOT_REACHED, of_call
from .._sides.call_arguments import Call, form_to_json, to_array
from .._sides.constants import Constants
from .._sides.flax_mode import of_init, parameters
from .._sides.flax_side import FlaxSide
from .._sides.step_data import Batch, Layout, Named, Observation, Task, targets_of
from .._weights.pytree_model import as_flax, framework_of, name_of
from .._weights.tree import FlaxModule, JaxModel, Variables, tree_of
from .outline import outline_to_json
from .writing import TraceArrays, table_of, written

if TYPE_CHECKING:
    import optax

Masks = tuple[np.ndarray, ...]


def record_jax(
    folder: str | os.PathLike[str],
    flax_module: JaxModel,
    inputs: Inputs,
    *,
    outputs: Outputs | None = None,
    targets: Any = (),
    loss: Callable[..., jax.Array] | None = None,
    optimizer: optax.GradientTransformation | None = None,
    steps: int | None = None,
    training: bool = True,
    layout: str | tuple[str, str] = "same",
    variables: Variables | None = None,
    flax_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Path:
    """Write a trace of a JAX model, which `against_jax` judges where the model's code is not.

    Args:
      folder: where `trace.json` and `arrays.safetensors` are written; made if it is missing.
      flax_module: the model with its weights, which may be torch's, from a file by `load_torch`.
      inputs, targets: as for `compare`, in torch's layout, and possibly functions of the step number.
      outputs, layout, flax_kwargs, seed: as for `compare`.
      loss, optimizer: JAX's halves of compare's pairs.
      steps: by default 2 with an optimizer, otherwise 1.
      training: the mode of the model, and of torch's when it is judged.
      variables: a Linen module's variables.

    Raises:
      ValueError: `steps` is below 1.

    >>> import tempfile
    >>> import numpy as np
    >>> from flax import nnx
    >>> from jaxpar import parity
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trace = parity.record_jax(folder, nnx.Linear(3, 4, rngs=nnx.Rngs(0)), np.ones((2, 3)))
    ...     sorted(path.name for path in trace.iterdir())
    ['arrays.safetensors', 'trace.json']
    """
    count = (2 if optimizer else 1) if steps is None else steps
    if count < 1:
        raise ValueError(f"parity.record_jax: steps={steps} must be at least 1.")
    module = as_flax(flax_module)
    first = Call.of(inputs(1) if callable(inputs) else inputs)
    parsed = Layout.parse(layout).of_outputs(first.arrays.values())
    task = Task(
        training=training,
        loss=(loss, loss) if loss else None,
        optimizer=(optimizer, optimizer) if optimizer else None,
        layout=parsed,
        seed=seed,
        outputs=output_pairs(outputs),
        channels_first=parsed.in_torchs_axes,
    )
    model_inputs = ModelInputs(module, task, (inputs, None, None), (None, flax_kwargs), function="record_jax")

    def batches(step: int) -> Batch:
        return dataclasses.replace(model_inputs.batch(step), targets=targets_of(targets, step, to_array))

    with exact():
        recording = _Recording(module, task, variables, batches, count)
        store, manifest = recording.recorded()
    manifest["notes"] = [*manifest["notes"], *model_inputs.notes()]
    manifest["layout"] = [layout] * 2 if isinstance(layout, str) else list(layout)
    return written(Path(folder), store, manifest)


@dataclasses.dataclass
class _Recording:
    module: FlaxModule
    task: Task
    variables: Variables | None
    batches: Callable[[int], Batch]
    steps: int

    def recorded(self) -> tuple[TraceArrays, dict[str, Any]]:
        store, side = TraceArrays(), self.side()
        calls, layers = list[Any](), list[Any]()
        start = {**side.weights(), **side.state()}
        store.add_all("start/", start)
        watched, observed = side.interception(lambda _: _LayerCalls()), list[LevelStep]()
        for step in range(1, self.steps + 1):
            batch, masks = self.batches(step), self.masks(side, step)
            # Before the step, which replaces the weights.
            layers += _added(store, f"{step}/layers", watched(batch, masks, ())[0])
            results = dataclasses.replace(side.step(batch, masks), masks=masks)
            if step == 1:
                check_flax(results, side.restarted(), batch, masks)
            store.add_step(f"{step}/", batch.torch_call.arrays, batch.targets, results)
            store.add_all(f"{step}/optimizer/", _leaves(side.opt_state))
            calls.append(form_to_json(batch.torch_call.form))
            observed.append(LevelStep(step, batch, results, results))
        constants = side.constants or Constants()
        store.add_all("constants/", constants.originals)
        store.add_all("exact/", {str(i): x for i, x in enumerate(constants.exact)})
        moved = {}
        if constants.originals:
            weights = side.restarted().weights()
            moved = moved_by_constants(self.masked, self.batches, observed, weights, Constants())
        return store, self._manifest(side) | {
            "calls": calls,
            "layers": layers,
            "constants": table_of(moved),
        }

    def _manifest(self, side: FlaxSide) -> dict[str, Any]:
        task, first, returned = self.task, self.batches(1).flax_call, side.returned
        gaps = [*of_call(first, "JAX", parameters(self.module, first)), *side.gaps(task.training)]
        call = in_float32(first)
        tree = tree_of(self.module, call.args, of_init(self.module, call.kwargs), self.variables)
        concrete = [(name, x) for name, x in returned.numbers.items() if not isinstance(x, jax.core.Tracer)]
        numbers = {name: np.asarray(x) for name, x in concrete}
        return {
            "framework": "jax",
            "subject": f"{name_of(self.module)} in {framework_of(self.module)}",
            "steps": self.steps,
            "seed": task.seed,
            "training": task.training,
            "own_modes": False,
            "loss": task.loss is not None,
            "optimizer": {"kind": "optax"} if task.optimizer else None,
            "outputs": None if task.outputs is None else list(task.outputs),
            "sole": returned.sole,
            "left_out": list(returned.left_out),
            "numbers": {name: float(x) for name, x in numbers.items() if x.dtype.kind != "c"},
            "outline": outline_to_json(tree),
            "modules": [],
            "tied": [],
            "probes": {},
            "lost_digits": [[], []],
            "notes": [*side.notes, *(NOT_REACHED + gap for gap in gaps)],
            "environment": environment(task, "float64"),
        }

    def side(self, constants: Constants | None = None) -> FlaxSide:
        return FlaxSide(self.module, self.task, "float64", self.variables, constants=constants)

    def masks(self, side: FlaxSide, step: int) -> Masks:
        """Draw the masks of a step: factors 0 or 1/p, or numbers."""
        random = np.random.RandomState([self.task.seed % 2**32, step, *b"masks"])
        draws = side.net.masks_asked(side.parameters, side.extra_state, side.call(self.batches(step)))
        return tuple(_drawn(random, *draw) for draw in draws)

    def masked(self, constants: Constants) -> _Masked:
        return _Masked(self, self.side(constants))


@dataclasses.dataclass
class _Masked:
    """A side that takes each step with the masks of the recording."""

    recording: _Recording
    side: FlaxSide
    steps: int = 0

    def step(self, batch: Batch) -> Observation:
        self.steps += 1
        return self.side.step(batch, self.recording.masks(self.side, self.steps))


class _LayerCalls:
    """A handler that records the arrays that each layer's calls take and return; `records` has them."""

    def __init__(self) -> None:
        self.trace = get_opaque_trace_state(convention="nnx")
        self.counts: dict[str, int] = {}
        self.records: dict[tuple[str, int], tuple[dict[int, Any], list[Any]]] = {}

    def __call__(
        self, path: str, layer: FlaxModule, call: Callable[..., PyTree], args: tuple, kwargs: dict
    ) -> PyTree:
        nth = self.counts[path] = self.counts.get(path, -1) + 1
        outputs = call(*args, **kwargs)
        # The arrays of a nested program, as of scan, cannot leave it.
        if get_opaque_trace_state(convention="nnx") == self.trace:
            arrays = (*args, *(kwargs[name] for name in by_keyword(layer, kwargs)))
            inputs = {i: x for i, x in enumerate(arrays) if _is_numeric(x)}
            returned = jax.tree.leaves(outputs)
            self.records[path, nth] = inputs, returned if all(map(_is_numeric, returned)) else []
        return outputs


def _is_numeric(x: Any) -> bool:
    return hasattr(x, "shape") and (jnp.issubdtype(x.dtype, jnp.number) or x.dtype == bool)


def _added(store: TraceArrays, prefix: str, records: Mapping[tuple[str, int], Any]) -> Iterator[dict]:
    for (path, nth), (inputs, outputs) in records.items():
        store.add_all(f"{prefix}/{path}/{nth}/inputs/", {str(i): x for i, x in inputs.items()})
        store.add_all(f"{prefix}/{path}/{nth}/outputs/", {str(i): x for i, x in enumerate(outputs)})
        step = int(prefix.partition("/")[0])
        yield {"step": step, "path": path, "nth": nth, "inputs": [*inputs], "outputs": len(outputs)}


def _drawn(random: np.random.RandomState, shape: Sequence[int], chance: Any) -> np.ndarray:
    if isinstance(chance, str):
        return random.standard_normal(shape) if chance == "normal" else random.random_sample(shape)
    chance = float(np.asarray(chance))
    return (random.random_sample(shape) < chance) / (chance or 1.0)


def _leaves(state: PyTree) -> Named:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves if _is_numeric(x)}
