"""Run a loop of torch, and note the gradients and settings with which its optimizer takes steps."""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .recipe import Arrays
from .runs import Run, complete, note_extras


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
            note_extras(run, value, len(run.weights))
    return complete(run, len(batches), "torch")


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
        batch = len(run.weights) - 1
        gradients = {name: p.grad.numpy().copy() for name, (p, _) in members.items() if p.grad is not None}
        run.entering.setdefault(batch, {}).update(gradients)
        with_gradient = {name for name, p in parameters.items() if p.grad is not None}
        run.with_gradient.setdefault(batch, set()).update(with_gradient)
        settings = {
            name: {
                key: x.item() if isinstance(x, torch.Tensor) else x
                for key, x in {**group, "kind": type(optimizer).__name__}.items()
                if key != "params"
            }
            for name, (_, group) in members.items()
        }
        run.groups.setdefault(batch, {}).update(settings)

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()
