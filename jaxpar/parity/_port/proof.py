"""The proof: import the written file afresh and compare it with torch. It trusts no translation."""

from __future__ import annotations

import copy
import functools
import gc
import importlib.util
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx
from torch import nn

from .._compare import compare
from .._comparison import Comparison
from .._reach import shake
from .._record import record
from .._sides import flax_float64, torch_float64
from .._sides.step_data import Layout, real_parts
from .._sides.torch_side import named_leaves
from .._stochastic_arithmetic import OUTPUTS
from ..measuring import Outcome
from .reading.hooks import with_copied_hooks
from .undefined import depends_on_choice, loss, moved_by_rounding
from .variants import mapped, once_each, variants

TEST = '''"""{name} computes what torch computed when it was ported; torch is not needed."""

from pathlib import Path

{imports}

RECORD = Path(__file__).with_name("{name}.safetensors")


def test_{name}_is_the_same():
    rngs = nnx.Rngs(0)
    net = {build}
    parity.require_same(parity.check(RECORD, net))
'''

STEPS, RATE = 5, 1e-4
SEARCH = 60.0
"""Seconds of the search for causes after a difference."""
FAR = 1e-3
"""The largest step of SGD, as the norm over all weights. The gradients of deep nets can start in the
thousands, and if a step changes the weights a lot, the next one amplifies every rounding error tenfold."""
LARGE = 1_000_000
"""The number of values above which a model's copies are not left to Python's own search for garbage."""
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
CHOICE = "there torch's results depend on which of equal values topk takes"
FEW = 8  # The number of values per channel below which a difference may come from BatchNorm
_numbers = itertools.count()


def imported(path: Path) -> ModuleType:
    name = f"_jaxpar_port_{next(_numbers)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Before it runs, because dataclasses look up their module in sys.modules.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def prove(
    make: Callable[[], torch.nn.Module],
    flax: nnx.Module,
    build: Callable[[], nnx.Module],
    inputs: Sequence[Any],
    kwargs: dict[str, Any],
    layout: Layout,
) -> tuple[list[Comparison], tuple[str, ...]]:
    """Compare five steps of training, then evaluations with more shapes, until one comparison fails.

    Returns the comparisons, and notes on what they leave out.
    """
    comparisons: list[Comparison] = []
    net = perturbed(make)
    trained = any(parameter.requires_grad for parameter in net.parameters())
    is_large = sum(jnp.size(x) for x in jax.tree.leaves(nnx.state(flax))) > LARGE
    # Zeros and ties, where derivatives differ, take turns with the example: they share its compiled step.
    rates, notes = accepted(net, inputs, kwargs)
    examples = [example for example, _ in rates] or [tuple(inputs)]
    rate = min((rate for _, rate in rates), default=RATE)
    # For a complex parameter, JAX's gradient is the conjugate of torch's, which is the direction of ascent.
    conjugate = optax.stateless(lambda gradients, _: jax.tree.map(jnp.conj, gradients))
    sgd = (lambda parameters: torch.optim.SGD(parameters, rate), optax.chain(conjugate, optax.sgd(rate)))
    steps: dict[str, Any] = {"steps": STEPS, "optimizer": sgd} if trained else {}
    # A module that accepts no second shape is evaluated with this one.
    shapes = larger_inputs(net, inputs, kwargs) or [tuple(inputs)]
    taking_turns = [tuple(map(once_each(array), example)) for example in examples]

    def of_step(step: int) -> tuple[Any, ...]:
        return taking_turns[(step - 1) % len(taking_turns)]

    evaluations: Any = ((False, tuple(map(once_each(array), shape)), {}) for shape in shapes)
    for training, arrays, more in ((True, of_step if trained else of_step(1), steps), *evaluations):
        if not comparisons or comparisons[-1].same:
            kw: dict[str, Any] = {"torch_kwargs": kwargs, "flax_kwargs": kwargs} if kwargs else {}
            options = {"training": training, "shake": False, "layout": layout, "search": SEARCH, **more, **kw}
            compared = compare(net, flax, arrays, **options)
            if compared.constants:
                compared = _with_tables_in_float64(compared, make, net, flax, build, arrays, options)
            comparisons.append(compared)
            if is_large:
                gc.collect()  # compiled steps and their sides refer to each other, and hold the model
    return comparisons, notes


def _with_tables_in_float64(
    compared: Comparison,
    make: Callable[[], nn.Module],
    net: nn.Module,
    flax: nnx.Module,
    build: Callable[[], nnx.Module],
    arrays: Any,
    options: dict[str, Any],
) -> Comparison:
    """Compare again, with tables of the constructors that both sides compute in float64, if they can."""
    try:
        exact = tables_of_torch(functools.partial(perturbed, make), net), tables_of_flax(build, flax)
    except Exception:  # a constructor that reads numbers of its arrays
        return compared
    again = compare(*exact, arrays, **{**options, "search": None})
    return again if again.same and not again.constants else compared


def accepted(
    net: nn.Module, inputs: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[tuple[tuple[Any, ...], float]], tuple[str, ...]]:
    """Return the example and its variants, as far as torch's outputs and gradients are finite, with rates.

    A rate is RATE, or what moves the weights by FAR in the first step, if that is less. A variant on which
    torch's own outputs have few digits is left out, with a note: ten norms of a black image, for example.
    """
    examples: list[tuple[tuple[Any, ...], float]] = []
    notes: list[str] = []
    for name, (example, _) in variants(inputs, {}).items():
        moved = moved_by_rounding(net, example, kwargs) if examples else 0.0
        if moved > OUTPUTS:
            notes.append(
                f"not compared with {name} in the inputs: there roundings move torch's outputs by {moved:.1g}"
            )
            continue
        if examples and depends_on_choice(net, example, kwargs):
            notes.append(f"not compared with {name} in the inputs: {CHOICE}")
            continue
        # A copy, because a call in training mode changes running statistics.
        module = copy.deepcopy(net).train()
        arguments, keywords = copy.deepcopy((tuple(example), dict(kwargs)))
        try:
            outputs = real_parts(named_leaves(module(*arguments, **keywords)))
            # The loss of `compare`: the rate depends on the gradients that the proof will have.
            loss(outputs).backward()
        except Exception:  # torch itself does not take these numbers
            continue
        gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        if all(bool(x.isfinite().all()) for x in (*outputs.values(), *gradients)):
            norm = float(np.linalg.norm([float(x.norm()) for x in gradients]))
            examples.append((example, min(RATE, FAR / max(norm, FAR))))
    return examples, tuple(notes)


def too_small(
    make: Callable[[], torch.nn.Module], inputs: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[str, ...]:
    """Two values are normalised to 1 and -1, whatever they are: the derivative is almost zero."""
    counts: dict[str, int] = {}
    module = perturbed(make).train()
    for name, layer in module.named_modules():
        if isinstance(layer, BATCH_NORMS):
            layer.register_forward_pre_hook(
                lambda _, arguments, name=name: counts.update(
                    {name: arguments[0].numel() // arguments[0].shape[1]}
                )
            )
    with torch.no_grad():
        module(*inputs, **kwargs)
    name, fewest = min(counts.items(), key=lambda count: count[1], default=("", FEW))
    if fewest >= FEW:
        return ()
    small = f"{name} has {fewest} values for each channel, and rounding shows in its derivative"
    return (f"the example is too small for BatchNorm: {small}; give more rows or larger images",)


def perturbed(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """Perturb the weights, because an unused scale would go unnoticed at its initial 1."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        module = with_copied_hooks(make())
        shake(module)
    return module


def array(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return x.detach().double().numpy() if x.is_floating_point() else x.numpy()


def larger_inputs(net: nn.Module, inputs: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the inputs with one more row and larger images: at once, or each change that torch accepts."""
    module = copy.deepcopy(net).eval()
    rows = tuple(map(once_each(functools.partial(longer, axis=0)), inputs))
    images = tuple(map(once_each(_larger), inputs))

    def takes(arguments: tuple[Any, ...]) -> bool:
        tensors = [(x, y) for x, y in zip(arguments, inputs, strict=True) if isinstance(x, torch.Tensor)]
        try:
            with torch.no_grad():
                module(*arguments, **kwargs)
        except Exception:  # torch itself does not take this shape
            return False
        return any(x.shape != y.shape for x, y in tensors)

    both = tuple(map(once_each(_larger), rows))
    return [both] if takes(both) else [shape for shape in (rows, images) if takes(shape)]


def remembers(make: Callable[[], torch.nn.Module], inputs: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether outputs depend on earlier calls, with different numbers and shapes, in either mode.

    What calls in training change in the state, as statistics, is not looked at in evaluation.
    """
    net = perturbed(make)
    others = mapped(_other_numbers, (tuple(inputs), dict(kwargs)))
    before = [others, *((larger, kwargs) for larger in larger_inputs(net, inputs, kwargs))]

    def outputs(module: nn.Module) -> dict[str, torch.Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            arguments, keywords = copy.deepcopy((tuple(inputs), dict(kwargs)))
            return named_leaves(module(*arguments, **keywords))

    with torch.no_grad():
        for training in (True, False):
            fresh = outputs(copy.deepcopy(net).train(training))
            for (arguments, keywords), first in itertools.product(before, (training, not training)):
                module = copy.deepcopy(net).train(first)
                try:
                    module(*copy.deepcopy(arguments), **copy.deepcopy(keywords))
                except Exception:  # torch itself does not take these inputs
                    continue
                if first is not training:
                    module.load_state_dict(net.state_dict(), strict=False)
                again = outputs(module.train(training))
                if not all(torch.allclose(x, again[name], equal_nan=True) for name, x in fresh.items()):
                    return True
    return False


def _other_numbers(x: Any) -> Any:
    if not isinstance(x, torch.Tensor) or x.is_complex() or x.ndim == 0:
        return x
    axis = max((axis for axis, length in enumerate(x.shape) if length > 1), default=0)
    return x.flip(axis) * 0.5 + 0.25 if x.is_floating_point() else x.flip(axis)


def longer(x: Any, axis: int, by: int = 1) -> Any:
    if not isinstance(x, torch.Tensor) or x.ndim <= axis:
        return x
    return torch.cat([x, x.narrow(axis, 0, min(by, x.shape[axis]))], axis)


def _larger(x: Any) -> Any:
    if isinstance(x, torch.Tensor) and x.ndim == 4:
        return longer(longer(x, 2, 8), 3, 8)
    return x


def largest(comparisons: Sequence[Comparison]) -> float:
    """The largest difference, relative to the largest tensor of its kind where torch's is exactly 0."""
    rows = [row for comparison in comparisons for row in comparison.rows if row.outcome is not Outcome.NOISE]
    return max((float(np.nan_to_num(row.value, nan=np.inf)) for row in rows), default=0.0)


def write_record(
    path: Path,
    build: str,
    module: torch.nn.Module,
    flax: nnx.Module | None,
    inputs: Sequence[Any],
    kwargs: dict[str, Any],
    layout: Layout,
    layers: str,
) -> None:
    """Write `net.safetensors`, `net.json` and `test_net.py` next to `net.py`."""
    more: dict[str, Any] = {"torch_kwargs": kwargs, "flax_kwargs": kwargs} if kwargs else {}
    arrays = tuple(map(array, inputs))
    record(path.with_suffix(".safetensors"), module.train(), flax, arrays, layout=layout, **more)
    imports = [
        "from flax import nnx",
        # `*`, because the build expression may name any definition of the file.
        f"from {path.stem} import *  # noqa: F403",
        "",
        "from jaxpar import parity",
    ]
    if "nn." in build.replace("nnx.", ""):
        imports.append(f"from jaxpar.nn import {layers} as nn")
    if "partial(" in build:
        imports.insert(0, "from functools import partial")
    text = TEST.format(name=path.stem, imports="\n".join(imports), build=build)
    path.with_name(f"test_{path.stem}.py").write_text(text, encoding="utf-8")


def tables_of_torch(make: Callable[[], nn.Module], net: nn.Module) -> nn.Module:
    """Return a copy of `net` with the tables of what `make` makes in float64."""
    exact, state = copy.deepcopy(net), net.state_dict()
    with torch_float64.in_float64():
        modules = dict(make().named_modules())
    for path, layer in exact.named_modules():
        for name, x in {**vars(modules[path]), **modules[path]._buffers}.items():
            narrow = getattr(layer, name, None)
            if not isinstance(x, torch.Tensor) or not isinstance(narrow, torch.Tensor):
                continue
            if narrow.dtype is torch.float32 and f"{path}.{name}".lstrip(".") not in state:
                # As a buffer, because `float` and `double` leave other attributes as they are.
                vars(layer).pop(name, None)
                layer.register_buffer(name, x.detach(), persistent=False)
    return exact


def tables_of_flax(build: Callable[[], nnx.Module], module: nnx.Module) -> nnx.Module:
    """Return a copy of `module` with the tables of what `build` makes in float64."""

    def tables(module: nnx.Module) -> dict[str, Any]:
        # `nnx.state` leaves out traced arrays.
        return {
            f"{path}{name}": x
            for path, layer in nnx.iter_modules(module, graph=True)
            for name, x in vars(layer).items()
            if isinstance(x, jax.Array | np.ndarray) and jnp.issubdtype(x.dtype, jnp.floating)
        }

    exact = nnx.clone(module, graph=True)
    with jax.enable_x64(True):
        values = jax.jit(flax_float64.in_float64(lambda: tables(build())))()
        for path, layer in nnx.iter_modules(exact, graph=True):
            for name in [name for name in vars(layer) if f"{path}{name}" in values]:
                setattr(layer, name, values[f"{path}{name}"])
    return exact
