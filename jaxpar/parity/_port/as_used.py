"""The file as it is used: in float32 with 32-bit integers, eager and compiled, twice, on all variants."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from .._sides import torch_float64
from .._sides.outputs import named
from .._sides.step_data import Layout
from .._sides.torch_side import named_leaves
from .._weights.load_torch import load_torch
from .proof import perturbed
from .undefined import depends_on_choice, moved_by_rounding
from .variants import Arguments, mapped, variants

ROUNDING = 1e-4
"""The bound for float32, relative to the largest number of an output: a thousand roundings in a row."""
AMPLIFIED = 30
"""How many times torch's own error in float32 the error may be, where digits cancel."""
DIGITS = 2.0**29
"""The ratio of a rounding in float32 to one in float64."""
EXCUSED = 1e-2
"""The largest relative difference that roundings of ties excuse; a branch that a tie takes moves more."""
MOST = 3
Call = Callable[[Arguments], Any]


def differences(
    make: Callable[[], torch.nn.Module],
    build: Callable[[], nnx.Module],
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    layout: Layout,
) -> tuple[str, ...]:
    """Return where the file differs from torch's module in evaluation under `torch.no_grad()`."""
    net = perturbed(make).eval()
    with jax.enable_x64(False):
        module = build()
        load_torch(module, net, lossy=True)
        module.eval()
        differences = list(equal_streams(module))
        of_torch: dict[Any, tuple[Arguments, tuple[Any, Any]]] = {}
        for name, call, arguments in _calls(net, module, variants(inputs, kwargs)):
            try:
                key = id(arguments), *((id(x), x._version) for x in net.state_dict(keep_vars=True).values())
                if key not in of_torch:  # with the arguments, so that no others get their id
                    wide = copy.deepcopy(net).double()
                    numbers = _torchs(net, arguments), _torchs(wide, _doubled(arguments))
                    of_torch[key] = arguments, numbers
                single, double = of_torch[key][1]
            except Exception:  # torch itself does not take these inputs
                continue
            try:
                returned = call(_arrays(arguments, layout))
            except NotImplementedError as hole:
                if "not ported" in str(hole):  # a line that the example does not run, of which a note tells
                    continue
                differences.append(f"{name}: {type(hole).__name__}: {hole}")
                continue
            except Exception as error:
                differences.append(f"{name}: {type(error).__name__}: {error}".partition("\n")[0])
                continue
            texts = [*_compared(returned, single, double, layout)]
            if texts:
                spread, varies = 0.0, name.endswith(" in the inputs")
                if varies:  # XLA may round equal numbers apart, which norms of constants amplify
                    spread = moved_by_rounding(net, *arguments, training=False, keeps_ties=False) * DIGITS
                rounding = _rounding(net, arguments, single)
                texts = [*_compared(returned, single, double, layout, spread, rounding)]
                texts *= not (texts and varies and depends_on_choice(net, *arguments, training=False))
            differences += [f"{name}: {text}" for text in texts]
    # One cause shows in many calls.
    return tuple(differences[:MOST])


def equal_streams(module: nnx.Module) -> Iterator[str]:
    """Name streams of random numbers that draw the same numbers, as copies of a layer do."""
    streams: dict[bytes, str] = {}
    for path, node in nnx.iter_graph(module):
        if isinstance(node, nnx.RngStream):
            key = (
                np.asarray(jax.random.key_data(node.key[...])).tobytes()
                + np.asarray(node.count[...]).tobytes()
            )
            name = ".".join(map(str, path))
            if (other := streams.setdefault(key, name)) != name:
                yield f"{other} and {name} draw the same random numbers"


def _calls(
    net: torch.nn.Module, module: nnx.Module, examples: dict[str, Arguments]
) -> Iterator[tuple[str, Call, Arguments]]:
    def eager(arguments: Arguments) -> Any:
        return module(*arguments[0], **arguments[1])

    def compiled(arguments: Arguments) -> Any:
        # As `jax.jit` passes arguments: dicts with sorted keys, and everything but arrays is static.
        leaves, structure = jax.tree.flatten(arguments)
        arrays = [x if isinstance(x, jax.Array) else None for x in leaves]
        program = programs.setdefault(str(structure), nnx.jit(_called(structure, leaves)))
        return program(module, arrays)

    programs: dict[str, Any] = {}
    (_, example), *others = examples.items()
    yield "in float32", eager, example
    yield "in float32, compiled", compiled, example
    yield "in float32, called again", compiled, example
    for name, arguments in others:
        yield f"in float32, with {name} in the inputs", compiled, arguments
    for name, arguments in _without_options(net, example):
        yield f"without {name}", eager, arguments


def _called(structure: Any, leaves: list[Any]) -> Callable[..., Any]:
    static = [None if isinstance(x, jax.Array) else x for x in leaves]

    def call(module: nnx.Module, arrays: list[Any]) -> Any:
        merged = [other if x is None else x for x, other in zip(arrays, static, strict=True)]
        args, kwargs = jax.tree.unflatten(structure, merged)
        return module(*args, **kwargs)

    return call


def _without_options(net: torch.nn.Module, example: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Yield the example without each optional argument that it has: keywords, and the last by position."""
    args, kwargs = example
    parameters = list(inspect.signature(net.forward).parameters.values())
    optional = {x.name for x in parameters if x.default is not inspect.Parameter.empty}
    for name in optional & kwargs.keys():
        yield name, (args, {key: x for key, x in kwargs.items() if key != name})
    if args and len(parameters) >= len(args) and parameters[len(args) - 1].name in optional:
        yield parameters[len(args) - 1].name, (args[:-1], kwargs)


def _torchs(net: torch.nn.Module, arguments: Arguments) -> dict[str, np.ndarray]:
    args, kwargs = copy.deepcopy(arguments)
    with torch.no_grad():
        outputs = net(*args, **kwargs)
    return {name: x.resolve_conj().resolve_neg().numpy() for name, x in named_leaves(outputs).items()}


def _rounding(net: torch.nn.Module, arguments: Arguments, single: dict[str, np.ndarray]) -> float:
    """Return torch's relative error in float32, also where the code names the type; or 0."""
    try:
        with torch_float64.in_float64():
            double = _torchs(copy.deepcopy(net).double(), _doubled(arguments))
    except Exception:  # code that reads the bits of a type
        return 0.0
    rows = [(x, double[name]) for name, x in single.items() if x.dtype.kind in "fc" and x.size]
    errors = [np.abs(x - y).max() / max(np.abs(y).max(), np.finfo(np.float32).tiny) for x, y in rows]
    return float(np.nan_to_num(max(errors, default=0.0)))


def _doubled(arguments: Arguments) -> Arguments:
    return mapped(
        lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x, arguments
    )


def _arrays(arguments: Arguments, layout: Layout) -> Arguments:
    """Return arrays: positional ones in Flax's layout, keywords in torch's, as the proof has them."""

    def array(x: Any, move: Callable[[np.ndarray], np.ndarray]) -> Any:
        return jnp.asarray(move(x.detach().numpy())) if isinstance(x, torch.Tensor) else x

    args, kwargs = arguments
    return mapped(lambda x: array(x, layout.inputs), args), mapped(lambda x: array(x, np.asarray), kwargs)


def _compared(
    returned: Any,
    single: dict[str, np.ndarray],
    double: dict[str, np.ndarray],
    layout: Layout,
    spread: float = 0.0,
    measured: float = 0.0,
) -> Iterator[str]:
    arrays = named(returned, lambda x: isinstance(x, jax.Array))
    if len(arrays) != len(single):
        yield f"{len(arrays)} outputs, and torch has {len(single)}"
        return
    by_name = arrays.keys() == single.keys()
    for (name, x), other in zip(single.items(), arrays, strict=True):
        array = layout.outputs_back(np.asarray(arrays[name if by_name else other]))
        if text := _difference(array, x, double[name], spread, measured):
            yield f"outputs{name} {text}"


def _difference(
    returned: np.ndarray, single: np.ndarray, double: np.ndarray, spread: float, measured: float = 0.0
) -> str:
    if returned.shape != single.shape:
        return f"has the shape {returned.shape}, and torch's {single.shape}"
    if single.dtype.kind not in "fc":
        wrong = (returned != single) & (single == double)
        return f"differs in {wrong.sum()} of {wrong.size} elements" if wrong.any() else ""
    finite = np.isfinite(single)
    if not np.array_equal(np.isfinite(returned), finite) and np.array_equal(np.isfinite(double), finite):
        infinite = (~np.isfinite(returned)).sum()
        return f"has {infinite} elements that are not finite, and torch's {(~finite).sum()}"
    # In float64 torch can fail where float32 does not: a mask of float32's smallest number.
    wide = np.where(finite, np.where(np.isfinite(double), double, single), 0)
    error = float(np.abs(np.where(finite, returned, 0) - wide).max(initial=0))
    rounding, size = (float(np.abs(x).max(initial=0)) for x in (np.where(finite, single, 0) - wide, wide))
    # Of what inputs are moved by only a bound that leaves room counts; torch's own error always may be made.
    bounds = (AMPLIFIED * spread, AMPLIFIED * measured, measured)
    excused = max((x for x in bounds if x <= EXCUSED), default=0.0)
    if error <= ROUNDING * size + max(AMPLIFIED * rounding, excused * size):
        return ""
    return (
        f"is {error:.2g} off torch's, whose numbers are up to {size:.2g} and whose rounding is {rounding:.1g}"
    )
