"""The proof: the written file, imported afresh, against the torch module. It trusts no translation."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import optax
import torch
from flax import nnx
from torch import nn

from .._compare import compare
from .._comparison import Comparison
from .._sides.step_data import Layout, factors, real_parts
from .._sides.torch_side import named_leaves

STEPS, RATE = 5, 1e-4
FAR = 1e-3
"""How far a step of SGD moves all weights together, at most. Deep nets begin with gradients in the thousands,
and where a step changes everything the next one makes ten times as much of every rounding."""
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
FEW = 8
"""Values for each channel, below which a difference may be BatchNorm's."""
_numbers = itertools.count()


def imported(path: Path) -> ModuleType:
    """A Python file as a module that nobody else has."""
    name = f"_jaxpar_port_{next(_numbers)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes with one thread inside: several would wait for each other over a few numbers at a time.

    They do so at work, on the processors that JAX compiles on. Other threads of the process see it, too.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def prove(
    make: Callable[[], torch.nn.Module],
    flax: nnx.Module,
    inputs: Sequence[Any],
    kwargs: dict[str, Any],
    layout: Layout,
) -> list[Comparison]:
    """Five steps of training, and evaluations with other shapes; until one of them differs."""
    found: list[Comparison] = []
    net = made(make)
    trained = any(each.requires_grad for each in net.parameters())
    rate = rate_of(made(make).train(), inputs, kwargs) if trained else RATE
    sgd = (lambda parameters: torch.optim.SGD(parameters, rate), optax.sgd(rate))
    steps: dict[str, Any] = {"steps": STEPS, "optimizer": sgd} if trained else {}
    # A module that takes no other shape is evaluated with this one.
    shapes = others(make, inputs, kwargs) or [tuple(inputs)]
    for training, given, more in ((True, inputs, steps), *((False, shape, {}) for shape in shapes)):
        if not found or found[-1].same:
            arrays = tuple(map(array, given))
            kw: dict[str, Any] = {"torch_kwargs": kwargs, "flax_kwargs": kwargs} if kwargs else {}
            found.append(compare(net, flax, arrays, training=training, layout=layout, **more, **kw))
            gc.collect()  # compiled steps and their sides refer to each other, and are as large as the model
    return found


def rate_of(net: torch.nn.Module, inputs: Sequence[Any], kwargs: dict[str, Any]) -> float:
    """RATE, or what moves the weights FAR in the first step, if that is less."""
    outputs = real_parts(named_leaves(net(*inputs, **kwargs)))
    drawn = factors({name: tuple(x.shape) for name, x in outputs.items()}, 0)
    terms = [(x * torch.as_tensor(drawn[name]).to(x.dtype)).sum() for name, x in outputs.items()]
    if any(each.requires_grad for each in terms):
        sum(terms, torch.zeros(())).backward()
    norms = [float(each.grad.norm()) for each in net.parameters() if each.grad is not None]
    return min(RATE, FAR / max(float(np.linalg.norm(norms)), FAR))


def too_small(
    make: Callable[[], torch.nn.Module], inputs: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[str, ...]:
    """The BatchNorm with the fewest values for a channel, if they are so few that rounding shows.

    Of two values one becomes 1 and the other -1, whatever they are: the derivative is almost zero.
    """
    counts: dict[str, int] = {}
    module = made(make).train()
    for name, layer in module.named_modules():
        if isinstance(layer, BATCH_NORMS):
            layer.register_forward_pre_hook(
                lambda _, given, name=name: counts.update({name: given[0].numel() // given[0].shape[1]})
            )
    with torch.no_grad():
        module(*inputs, **kwargs)
    name, fewest = min(counts.items(), key=lambda each: each[1], default=("", FEW))
    if fewest >= FEW:
        return ()
    found = f"{name} has {fewest} values for each channel, and rounding shows in its derivative"
    return (f"the example is too small for BatchNorm: {found}; give more rows or larger images",)


def made(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """The torch module with weights as after some training: a scale of 1 would hide that it is not used.

    Whoever else draws from torch's generator gets the same numbers as without this.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        module = make()
        for tensor in module.parameters():
            if tensor.is_floating_point():
                tensor += 0.02 * torch.randn_like(tensor)
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer += 0.1 * torch.randn_like(buffer)
            if name.endswith("running_var"):
                buffer *= 1 + 0.5 * torch.rand_like(buffer)
    return module


def array(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return x.detach().double().numpy() if x.is_floating_point() else x.numpy()


def others(
    make: Callable[[], torch.nn.Module], inputs: Sequence[Any], kwargs: dict[str, Any]
) -> list[tuple[Any, ...]]:
    """The same inputs with one row more and larger images: at once, or each that torch takes."""
    module = made(make).eval()
    rows, images = tuple(longer(x, 0) for x in inputs), tuple(map(_larger, inputs))

    def takes(given: tuple[Any, ...]) -> bool:
        tensors = [(x, y) for x, y in zip(given, inputs, strict=True) if isinstance(x, torch.Tensor)]
        try:
            with torch.no_grad():
                module(*given, **kwargs)
        except Exception:  # torch itself does not take this shape
            return False
        return any(x.shape != y.shape for x, y in tensors)

    both = tuple(map(_larger, rows))
    return [both] if takes(both) else [given for given in (rows, images) if takes(given)]


def longer(x: Any, axis: int, by: int = 1) -> Any:
    """With its first entries once more at the end of an axis."""
    if not isinstance(x, torch.Tensor) or x.ndim <= axis:
        return x
    return torch.cat([x, x.narrow(axis, 0, min(by, x.shape[axis]))], axis)


def _larger(x: Any) -> Any:
    if isinstance(x, torch.Tensor) and x.ndim == 4:
        return longer(longer(x, 2, 8), 3, 8)
    return x


def largest(comparisons: Sequence[Comparison]) -> float:
    """The largest relative difference of all that was compared and is no noise."""
    from ..measuring import Outcome

    rows = [row for each in comparisons for row in each.rows if row.outcome is not Outcome.NOISE]
    return max((float(np.nan_to_num(row.difference.relative, nan=np.inf)) for row in rows), default=0.0)
