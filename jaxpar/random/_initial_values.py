"""initialise: the fills by which a torch module's constructor and its initialisation set its tensors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx

from . import init
from ._construction import construction
from ._generator import Generator
from ._torch_init import _convert, _DrawnLayer, _Parameter, _visits

M = TypeVar("M", bound=nnx.Module)
Row = tuple[Any, ...]
LAYER = "reset_parameters"
CHANGES: dict[str, Callable[..., Any]] = {
    "mul_": lambda x, factor: np.multiply(x, factor, out=x),
    "add_": lambda x, term: np.add(x, term, out=x),
    "div_": lambda x, divisor: np.divide(x, divisor, out=x),
    "fill_": lambda x, value: x.fill(value),
    "zero_": lambda x: x.fill(0),
    "clamp_": lambda x, low, high: np.clip(x, low, high, out=x),
}


def initialise(module: M, rows: Iterable[Row], source: nnx.Rngs | Generator | int) -> M:
    """Fill a module's arrays as the initialisation of its torch twin does.

    Args:
      module: an NNX module of layers that have a torch counterpart. It is changed in place.
      rows: (name, function, *arguments) in torch's order: the name of a tensor in torch, with `[3:6]` a part
        of its flattened elements; a function of `torch.nn.init`, or `mul_`, `add_`, `div_`, `fill_`, `zero_`,
        `clamp_`; its arguments by position. (name of a layer, "reset_parameters") replays the draws of
        the layer's constructor.
      source: a seed of `torch.manual_seed` or a `Generator`, for torch's numbers: layers draw first, in the
        order of the attributes, if no row is of a layer. `nnx.Rngs` for others of the same distributions;
        then layers keep their constructor's values.

    Returns: The module. Raises: KeyError: a name that the module does not have.

    >>> import numpy as np
    >>> from flax import nnx
    >>> from jaxpar import random
    >>> net = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    >>> net = random.initialise(net, [("weight", "eye_"), ("weight", "mul_", 2.0), ("bias", "zeros_")], 0)
    >>> np.asarray(net.kernel).tolist()
    [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]

    torch counterpart: `torch.manual_seed(seed)`, the constructor, and the functions of `torch.nn.init`.
    """
    rows, exact = list(rows), not isinstance(source, nnx.Rngs)
    generator = source if isinstance(source, Generator) else Generator(_seed(source))
    parts = dict(_visits(module, {}))
    tensors: dict[str, dict[str, np.ndarray]] = {}
    if exact and not any(function == LAYER for _, function, *_ in rows):
        layers = [path for path, part in parts.items() if isinstance(part, _DrawnLayer) and _is_drawn(part)]
        rows = [*((path, LAYER) for path in layers), *rows]
    for name, function, *arguments in rows:
        path = (
            name if name in parts else max((p for p in parts if name.startswith(f"{p}.") or not p), key=len)
        )
        part = parts[path]
        if function == LAYER:
            if exact:
                tensors[path] = part.draw(generator, None)
            continue
        if path not in tensors:
            tensors[path] = _values(part)
        key, _, piece = name[len(path) + bool(path) :].partition("[")
        if key not in tensors[path]:
            names = ", ".join(map(repr, tensors[path])) or "none"
            raise ValueError(f"initialise: no array is named {name!r}; those of {path!r} are {names}.")
        x = tensors[path][key]
        if piece:
            start, stop = map(int, re.findall(r"\d+", piece))
            x = x.reshape(-1)[start:stop]
        _apply(x, function, arguments, generator)
    placed: dict[int, tuple[nnx.Variable, jax.Array]] = {}
    for path, filled in tensors.items():
        _convert(parts[path], filled, placed)
    for variable, value in placed.values():
        variable.set_raw_value(value)
    return module


def _values(part: _DrawnLayer | _Parameter) -> dict[str, np.ndarray]:
    values = {leaf: np.array(x.get_raw_value()) for leaf, x in part.variables.items()}
    torchs = part.rule.to_torch(values) if isinstance(part, _DrawnLayer) else values
    # Contiguous in torch's layout, because arrays are filled in memory order. In torch's default type, since
    # with JAX's 64 bits `jnp.zeros(3)` is float64, for which torch draws different numbers.
    single = (np.array(x, np.float32 if x.dtype == np.float64 else None, order="C") for x in torchs.values())
    return dict(zip(torchs, single, strict=True))


def _is_drawn(part: _DrawnLayer) -> bool:
    return construction(part.rule.torch) is not None


def _seed(source: nnx.Rngs | int) -> int:
    return int(jax.random.bits(source.params())) if isinstance(source, nnx.Rngs) else source


def _apply(x: np.ndarray, function: str, arguments: list[Any], generator: Generator) -> None:
    if function in CHANGES:
        CHANGES[function](x, *arguments)
        return
    fill = getattr(init, function)
    draws = "generator" in inspect.signature(fill).parameters
    fill(x, *arguments, **({"generator": generator} if draws else {}))
