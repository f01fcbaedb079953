"""Record what torch computes: every array of N steps, each layer's calls, the noise floor and the probes.

Runs where JAX is not installed: `jaxpar.parity.recorder` packs this file and what it imports into one file.
Names and layouts are torch's; the judge converts them.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from .._determinism import require_equal
from .._divergence.torch_trace import Trace, watched
from .._float32_constants import moved_by_constants
from .._levels import LevelStep
from .._reach import NOT_REACHED, of_call, some, unreached
from .._reach import shake as shake_weights
from .._sides.call_arguments import Call, form_to_json, to_array
from .._sides.constants import Constants
from .._sides.step_data import Batch, Named, Task, same, targets_of
from .._sides.torch_choices import counted
from .._sides.torch_dropout import refuse_unwatchable
from .._sides.torch_side import TorchFunction, TorchSide, one_thread, to_numpy, torch_parameters
from .._stochastic_arithmetic import perturbations
from .probing import Probes, TorchHalf
from .writing import SETTINGS, TraceArrays, is_setting, table_of, written

CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)


def record(
    folder: str | os.PathLike[str],
    torch_module: torch.nn.Module | Callable[..., Any],
    inputs: Any = None,
    *,
    targets: Any = (),
    loss: Callable[..., Any] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    steps: int | None = None,
    training: bool | None = None,
    outputs: Sequence[str | int] | None = None,
    torch_kwargs: Mapping[str, Any] | None = None,
    shake: bool = False,
    seed: int = 0,
    seconds: float = 120.0,
) -> Path:
    """Write a trace of a torch model, which `jaxpar parity --against` judges without torch.

    Args:
      folder: where `trace.json` and `arrays.safetensors` are written; made if it is missing.
      torch_module, inputs, targets, steps, training, torch_kwargs, seed: as for `parity.compare`; inputs and
        targets may be functions of the step number.
      loss, optimizer: torch's halves of compare's pairs.
      outputs: the names of the outputs to compare; all by default.
      shake: whether all weights are perturbed first.
      seconds: the time for the probes by which causes are named; those that are left out are counted.
    """
    module = torch_module if isinstance(torch_module, torch.nn.Module) else TorchFunction(torch_module)
    module = copy.deepcopy(module)
    if shake:
        shake_weights(module)
    mode = module.training
    task = Task(
        training=mode if training is None else training,
        own_modes=training in (None, mode) and any(layer.training != mode for layer in module.modules()),
        loss=(loss, loss) if loss else None,
        optimizer=(optimizer, None) if optimizer else None,
        seed=seed,
        outputs=None if outputs is None else {str(name): str(name) for name in outputs},
    )
    if task.training:
        refuse_unwatchable(module, 1)

    def call_of(step: int, kwargs: Mapping[str, Any] | None = None) -> Call:
        return Call.of(inputs(step) if callable(inputs) else inputs, kwargs, to_array)

    def batch(step: int) -> Batch:
        call = call_of(step, torch_kwargs)
        arrays = targets_of(targets, step, to_array)
        floating = [name for name, x in call.arrays.items() if x.dtype.kind == "f"]
        return Batch(call, targets=arrays, common={name: (name, same) for name in floating})

    source = TorchHalf(module, task, batch, call_of, steps or (2 if optimizer else 1))
    # Small arrays: a pool of threads waits longer than it computes, above all on a busy machine.
    with one_thread():
        store, manifest = _recorded(source, seconds)
    return written(Path(folder), store, manifest)


def _recorded(source: TorchHalf, seconds: float) -> tuple[TraceArrays, dict[str, Any]]:
    store, task, batches = TraceArrays(), source.task, source.batches
    side = source.reference("float64")
    store.add_all("start/", {**side.weights(), **side.state()})
    start, notes = side.weights(), list[str]()
    observed: list[LevelStep] = []
    calls = []
    for step in range(1, source.steps + 1):
        with counted(notes if step == 1 else [], side.module):
            results = side.step(batches(step))
        if step == 1:
            notes += _draws(side.drawn)
            require_equal("the torch module", results, source.reference("float64").step(batches(1)))
            store.add_all("single/", source.reference("float32").step(batches(1)).gradients)
        observed.append(LevelStep(step, batches(step), results, results))
        calls.append(form_to_json(source.inputs(step).form))
        store.add_step(f"{step}/", batches(step).torch_call.arrays, batches(step).targets, results)
        store.add_all(f"{step}/optimizer/", _optimizer_state(side))
    returned = side.returned
    gaps = [*unreached(source.module, task.training, source.steps, False, [])]
    call = batches(1).torch_call
    gaps += of_call(call, "torch", torch_parameters(source.module, call))
    if side.constants and (casts := [*side.constants.casts]):
        gaps.append(f"roundings to {some(casts)}, which this level computes in float64")
    notes += [NOT_REACHED + gap for gap in gaps]
    constants = Constants()
    reference = functools.partial(source.reference, "float64")
    moved = moved_by_constants(reference, batches, observed, start, constants)
    store.add_all("constants/", constants.originals)
    layers, probes, loss_call = _traced(source, store, seconds)
    return store, {
        "loss_call": loss_call,
        "subject": getattr(source.module, "shown_name", type(source.module).__name__),
        "steps": source.steps,
        "seed": task.seed,
        "training": task.training,
        "own_modes": task.own_modes,
        "loss": task.loss is not None,
        "optimizer": _settings_of(side.optimizer),
        "outputs": None if task.outputs is None else list(task.outputs),
        "sole": returned.sole,
        "left_out": list(returned.left_out),
        "numbers": {name: float(x) for name, x in returned.numbers.items() if not isinstance(x, complex)},
        "calls": calls,
        "modules": _modules(source.module),
        "tied": _tied(source.module),
        "layers": layers,
        "probes": probes,
        "lost_digits": [
            table_of(perturbations(source, batches, source.steps, ties)) for ties in (False, True)
        ],
        "constants": table_of(moved),
        "notes": notes,
        "environment": {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        },
    }


def _draws(drawn: set[str]) -> list[str]:
    names = ", ".join(f"torch's {name}" for name in sorted(drawn))
    return [f"not reached: other throws of {names}, drawn in torch's code besides dropout"] if names else []


def _optimizer_state(side: TorchSide) -> Named:
    states = side.optimizer.state_dict()["state"] if side.optimizer else {}
    tensors = {f"{i}/{name}": x for i, state in states.items() for name, x in state.items()}
    return {name: to_numpy(x) for name, x in tensors.items() if isinstance(x, torch.Tensor)}


def _settings_of(optimizer: torch.optim.Optimizer | None) -> dict[str, Any] | None:
    if optimizer is None:
        return None
    plain = {name: x for name, x in optimizer.defaults.items() if isinstance(x, (*SETTINGS, tuple))}
    return {"kind": type(optimizer).__name__, "settings": plain}


def _modules(module: torch.nn.Module) -> list[dict[str, Any]]:
    return [
        {
            "path": path,
            "kinds": [kind.__name__ for kind in type(layer).__mro__[:-1]],
            "torchs": type(layer).__module__.startswith("torch.nn."),
            "settings": {
                name: list(x) if isinstance(x, tuple) else x
                for name, x in vars(layer).items()
                if not name.startswith("_") and is_setting(x)
            },
        }
        for path, layer in module.named_modules(remove_duplicate=False)
    ]


def _tied(module: torch.nn.Module) -> list[list[str]]:
    by_tensor: dict[int, list[str]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        by_tensor.setdefault(id(tensor), []).append(name)
    return [names for names in by_tensor.values() if len(names) > 1]


def _traced(
    source: TorchHalf, store: TraceArrays, seconds: float
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any] | None]:
    """Trace the first step's forward pass, and probe it."""
    # Without the optimizer, so that no probe changes a weight.
    plain = dataclasses.replace(source, task=dataclasses.replace(source.task, optimizer=None))
    side, trace = plain.reference("float64"), Trace()
    forced = _layers(side.module)
    batch = source.batches(1)
    before = {name: x.detach().clone() for name, x in side.module.state_dict().items()}
    results = side.step(batch, watched(side.module, forced, trace, keep=True, outputs=side.leaves))
    for call in trace.calls:
        call.replayed = forced[call.path]
        for which in ("inputs", "outputs"):
            prefix = f"layers/{call.path}/{call.nth}/{which}/"
            store.add_all(prefix, {str(i): x for i, x in enumerate(getattr(call, which))})
    probes = Probes(side, batch, trace, results, before, [*forced], time.monotonic() + seconds)
    probes.ask(source)
    store.add("probes/rows", np.array(probes.rows, np.int32).reshape(-1, 2))
    store.add("probes/sketches", np.array(probes.sketches, np.float64))
    layers = [
        {"path": call.path, "nth": call.nth, "first": call.first, "last": call.last, "forced": call.replayed}
        for call in trace.calls
    ]
    return layers, probes.manifest(), _loss_call(trace, batch) if source.task.loss else None


def _loss_call(trace: Trace, batch: Batch) -> dict[str, Any] | None:
    """Return the function of torch that the loss is, if it is a single one of the outputs and targets."""
    calls = [
        op for op in trace.ops[trace.model_ops :] if getattr(op.function, "__module__", "") == F.__name__
    ]
    if len(calls) != 1 or [*trace.outputs] != [""]:
        return None
    (op,) = calls
    bound = inspect.signature(op.function).bind(*op.args, **op.kwargs).arguments
    arguments: list[str] = []
    settings: dict[str, Any] = {}
    for name, x in bound.items():
        targets = [i for i, y in enumerate(batch.targets) if isinstance(x, torch.Tensor) and _equal(x, y)]
        if x is trace.outputs[""] or targets:
            arguments.append(f"targets[{targets[0]}]" if targets else "outputs")
        elif isinstance(x, torch.Tensor):
            settings[name] = {"array": x.tolist()}
        elif isinstance(x, SETTINGS) and x is not None:
            settings[name] = x
    return {"name": op.name, "arguments": arguments, "settings": settings}


def _equal(x: torch.Tensor, y: np.ndarray) -> bool:
    return tuple(x.shape) == y.shape and bool(np.array_equal(to_numpy(x), y))


def _layers(module: torch.nn.Module) -> dict[str, bool]:
    """Return the layers to watch, and whether a probe stops there: outermost layers that have tensors."""
    watched_layers: dict[str, bool] = {}
    for path, layer in module.named_modules():
        torchs = type(layer).__module__.startswith("torch.nn.")
        is_leaf = torchs or not any(True for _ in layer.children())
        if isinstance(layer, CONTAINERS) or "parametrizations" in path.split(".") or not (path or is_leaf):
            continue
        is_nested = any(
            stops and (not other or path.startswith(f"{other}.")) for other, stops in watched_layers.items()
        )
        watched_layers[path] = is_leaf and not is_nested and bool(layer.state_dict())
    return watched_layers
