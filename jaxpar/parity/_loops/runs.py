"""Run both loops on the same parameters and made-up gradients, and note what they do."""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .recipe import Arrays

Shapes = Mapping[str, tuple[int, ...]]
SHAPES: Shapes = {
    "embed.weight": (6, 4),
    "layer.weight": (4, 5),
    "layer.bias": (5,),
    "norm.weight": (5,),
    "norm.bias": (5,),
}
"""Matrices, and the vectors that loops often leave out of their weight decay."""


@dataclass
class Run:
    """What a loop did: `weights` before the first batch and after each one; the first step's `settings`."""

    weights: list[dict[str, np.ndarray]] = field(default_factory=list)
    extras: dict[str, list[Any]] = field(default_factory=dict)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    entering: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)  # by batch
    groups: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)  # torch's, by batch


def made_up_gradients(shapes: Shapes, count: int, seed: int, infinite: Iterable[int]) -> list[Arrays]:
    """Return gradients with norms below and above any usual limit, with zeros and tiny values."""
    random = np.random.default_rng(seed)
    elements = sum(np.prod(shape) for shape in shapes.values())
    batches: list[Arrays] = []
    for i in range(count):
        # The first updates are below any limit, so that they show the optimizer alone.
        low, high = (-2.0, -1.5) if i < count // 4 else (-1.5, 1.5)
        size = 10 ** random.uniform(low, high) / np.sqrt(elements)
        batch = {name: np.asarray(size * random.standard_normal(shape)) for name, shape in shapes.items()}
        for gradient in batch.values():
            flat = gradient.reshape(-1)
            flat[:: max(len(flat) // 2, 2)] *= 1e-8  # about Adam's epsilon
            if i % 3 == 0 and len(flat) > 2:
                flat[1] = 0.0
        batches.append(batch)
    for i in infinite:
        next(iter(batches[i].values())).reshape(-1)[0] = np.inf
    return batches


def made_up_weights(shapes: Shapes, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng([seed, 1])
    return {name: np.asarray(random.standard_normal(shape)) for name, shape in shapes.items()}


# ---------------------------------------------------------------------------------------------------- torch


def run_torch(
    loop: Callable[..., Any], module: torch.nn.Module | None, weights: Arrays, batches: Sequence[Arrays]
) -> Run:
    """Run `loop(model, batches)`, or the optimizer and schedulers that `loop(parameters)` returns."""
    model = _stand_in(module, weights)
    parameters = dict(model.named_parameters())
    run = Run()
    arguments = inspect.signature(loop).parameters

    def snapshot() -> None:
        run.weights.append({name: p.detach().numpy().copy() for name, p in parameters.items()})

    def watched() -> Iterator[dict[str, torch.Tensor]]:
        for batch in batches:
            snapshot()
            yield {name: torch.from_numpy(x.copy()) for name, x in batch.items()}
        snapshot()

    with _watching(run, parameters):
        function = loop if len(arguments) > 1 else partial(_plain_torch, loop)
        steps = function(model, watched())
        for value in steps if isinstance(steps, Iterator) else ():
            _note_extras(run, value, len(run.weights))
    return _complete(run, len(batches), "torch")


def _stand_in(module: torch.nn.Module | None, weights: Arrays) -> torch.nn.Module:
    """Return a module with these parameters whose forward pass has the batch as its gradient."""
    model = torch.nn.Module() if module is None else copy.deepcopy(module).double().cpu()
    if module is None:
        for name, x in weights.items():
            owner = model
            *path, last = name.split(".")
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, torch.nn.Module())
                owner = owner.get_submodule(part)
            owner.register_parameter(last, torch.nn.Parameter(torch.from_numpy(x.copy())))
    else:
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(torch.from_numpy(weights[name]))
    model.forward = types.MethodType(_linear, model)
    return model


def _linear(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    terms = [(p * batch[name]).sum() for name, p in model.named_parameters()]
    return torch.stack(terms).sum()


def _plain_torch(build: Callable[..., Any], model: torch.nn.Module, batches: Iterable[Any]) -> None:
    built = build(list(model.parameters()))
    optimizer, *schedulers = built if isinstance(built, tuple) else (built,)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            "parity.compare_loops: torch_loop(parameters) must return a torch optimizer, or a tuple of one "
            f"and schedulers; it returned {type(optimizer).__name__}. A loop takes (model, batches)."
        )
    for batch in batches:
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()


@contextmanager
def _watching(run: Run, parameters: Mapping[str, torch.nn.Parameter]) -> Iterator[None]:
    """Note the gradients and settings with which each optimizer of these parameters takes a step."""
    names = {id(p): name for name, p in parameters.items()}

    def note(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        members = {
            names[id(p)]: (p, group)
            for group in optimizer.param_groups
            for p in group["params"]
            if id(p) in names and p.grad is not None
        }
        if not members:
            return
        if optimizer not in run.optimizers:
            run.optimizers.append(optimizer)
        batch = len(run.weights) - 1
        gradients = {name: p.grad.numpy().copy() for name, (p, _) in members.items() if p.grad is not None}
        run.entering.setdefault(batch, {}).update(gradients)
        settings = {
            name: {
                **{key: _number(x) for key, x in group.items() if key != "params"},
                "kind": type(optimizer).__name__,
            }
            for name, (_, group) in members.items()
        }
        run.groups.setdefault(batch, {}).update(settings)

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()


def _number(x: Any) -> Any:
    return x.item() if isinstance(x, torch.Tensor) else x


# ------------------------------------------------------------------------------------------------------ JAX


def linear_loss(parameters: Any, batch: Any) -> jax.Array:
    """Return the loss whose gradient is the batch: sum(parameter * batch), for loops of `compare_loops`.

    Args:
      parameters, batch: pytrees of the same structure and shapes.

    Returns:
      A scalar.

    >>> import jax, jax.numpy as jnp
    >>> from jaxpar import parity
    >>> gradients = jax.grad(parity.linear_loss)({"w": jnp.ones(2)}, {"w": jnp.array([3.0, 4.0])})
    >>> gradients["w"].tolist()
    [3.0, 4.0]
    """
    return sum(jax.tree.leaves(jax.tree.map(lambda p, g: jnp.sum(p * g), parameters, batch)), jnp.zeros(()))


def run_jax(loop: Any, names: Mapping[str, str], weights: Arrays, batches: Sequence[Arrays]) -> Run:
    """Run `loop(parameters, batches)`, a generator of parameters, or an optax transformation.

    `names` maps torch's names to the dotted paths of the JAX parameters.
    """
    run = Run(weights=[dict(weights)])
    drawn = 0

    def watched() -> Iterator[Any]:
        nonlocal drawn
        for batch in batches:
            while len(run.weights) <= drawn:  # without a yield since the last batch: no update
                run.weights.append(run.weights[-1])
            drawn += 1
            yield _nested(batch, names)

    function = _plain_jax(loop) if isinstance(loop, optax.GradientTransformation) else loop
    steps = function(_nested(weights, names), watched())
    if not isinstance(steps, Iterator):
        raise TypeError(
            "parity.compare_loops: JAX's loop must be a generator that yields its parameters after each "
            f"batch (`yield params`); it returned {type(steps).__name__}."
        )
    for value in steps:
        if not drawn:  # the initial parameters
            continue
        parameters, extras = value if isinstance(value, tuple) and len(value) == 2 else (value, {})
        del run.weights[drawn:]
        run.weights += [run.weights[-1]] * (drawn - len(run.weights)) + [_flat(parameters, names)]
        _note_extras(run, extras, drawn, names)
    run.weights += [run.weights[-1]] * (drawn + 1 - len(run.weights))
    return _complete(run, len(batches), "JAX")


def _plain_jax(tx: optax.GradientTransformation) -> Callable[..., Iterator[Any]]:
    def loop(parameters: Any, batches: Iterable[Any]) -> Iterator[Any]:
        @jax.jit
        def step(parameters: Any, state: Any, batch: Any) -> tuple[Any, Any]:
            updates, state = tx.update(jax.grad(linear_loss)(parameters, batch), state, parameters)
            return optax.apply_updates(parameters, updates), state

        state = tx.init(parameters)
        for batch in batches:
            parameters, state = step(parameters, state, batch)
            yield parameters

    return loop


def _nested(arrays: Arrays, names: Mapping[str, str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, x in arrays.items():
        *path, last = names.get(name, name).split(".")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
        branch[last] = jnp.asarray(x)
    return tree


def _flat(tree: Any, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    torch_names = {jax_name: name for name, jax_name in names.items()}
    arrays = {}
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        arrays[torch_names.get(name, name)] = np.asarray(x)
    return arrays


# ----------------------------------------------------------------------------------------------------- both


def _note_extras(run: Run, value: Any, batch: int, names: Mapping[str, str] | None = None) -> None:
    """Note numbers and averaged parameters, which a loop yields as `parameters, {"ema": averaged}`."""
    extras = value[1] if isinstance(value, tuple) and len(value) == 2 else value
    if not isinstance(extras, Mapping) or isinstance(extras, torch.nn.ParameterDict):
        return
    for key, x in extras.items():
        if isinstance(x, torch.nn.Module):
            arrays = {
                name.removeprefix("module."): p.detach().numpy().copy() for name, p in x.named_parameters()
            }
        elif isinstance(x, Mapping) and names is None:
            arrays = {name.removeprefix("module."): _array(value) for name, value in x.items()}
        else:
            arrays = _flat(x, names or {}) if isinstance(x, Mapping) else {"": _array(x)}
        values = run.extras.setdefault(key, [])
        values += [None] * (batch - 1 - len(values))
        values[batch - 1 :] = [arrays]


def _array(x: Any) -> np.ndarray:
    return x.detach().numpy().copy() if isinstance(x, torch.Tensor) else np.asarray(x)


def _complete(run: Run, count: int, side: str) -> Run:
    if len(run.weights) != count + 1:
        batch_count = max(len(run.weights) - 1, 0)
        raise ValueError(
            f"parity.compare_loops: {side}'s loop took {batch_count} of the {count} batches. It must iterate "
            "over all of `batches`, once."
        )
    return run
