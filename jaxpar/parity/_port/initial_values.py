"""Initial values: what fills torch's parameters while the module is made, as a table in the written file.

Recorded are the calls and not their code, so that code of any form and depth counts, a library's included. A
row of the table is one call; blocks whose rows repeat become loops.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flax import nnx
from torch import nn
from torch.overrides import TorchFunctionMode

from ...random import Generator, init, initialise
from .._weights.to_torch import to_torch
from .reading.watching import profiled

Row = tuple[Any, ...]
LAYER = "reset_parameters"
RESETS = (LAYER, "_reset_parameters")
METHODS = ("normal_", "uniform_", "zero_", "fill_", "mul_", "add_", "div_", "clamp_", "copy_", "erfinv_")
"""In-place methods that set values, outside of the functions of `torch.nn.init`."""
KNOWN = {*METHODS} - {"copy_", "erfinv_"} | {name for name in vars(init) if name.endswith("_")}
CONSTANT = ("zeros_", "ones_", "constant_", "zero_", "fill_")
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)
INIT, LAYERS = Path(str(nn.init.__file__)), Path(str(nn.__file__)).parent / "modules"
TABLE = '''INITIAL_VALUES = [
{rows}
]


def initial_values(net, rngs):
    """Fill the arrays as torch does; with a seed for `rngs`, with the numbers of torch.manual_seed."""
    return initialise(net, INITIAL_VALUES, rngs)'''
ROUNDING = 1e-5


class _Fills(TorchFunctionMode):
    """Records the calls of tensors' methods that fill, and through `profile` the calls of `torch.nn.init`."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[Any, str, tuple[Any, ...]]] = []
        self.frames: list[Any] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if not self.frames and name in METHODS:
            values = (*args[1:], *(x for key, x in (kwargs or {}).items() if key != "generator"))
            self.events.append((args[0], name, values))
        return function(*args, **(kwargs or {}))

    def profile(self, frame: Any, event: str, _: Any) -> None:
        if event == "return" and self.frames and self.frames[-1] is frame:
            self.frames.pop()
        if event != "call":
            return
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        is_init = file == str(INIT) and name.endswith("_") and not name.startswith("_")
        is_reset = name in RESETS and Path(file).parent == LAYERS
        if not (is_init or is_reset):
            return
        if not self.frames:
            code = frame.f_code
            values = [
                frame.f_locals[x] for x in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            ]
            named = dict(zip(code.co_varnames, values, strict=False))
            named.pop("generator", None)
            subject, *arguments = named.values()
            self.events.append((subject, LAYER if is_reset else name, tuple(arguments)))
        self.frames.append(frame)


@dataclasses.dataclass(frozen=True)
class Initialisation:
    """The rows of torch's fills, the parameters that other code sets, and torch's module."""

    rows: list[Row]
    unknown: list[str]
    net: nn.Module

    @classmethod
    def of(cls, make: Callable[[], nn.Module]) -> Initialisation:
        return cls(*_rows_of(make))

    def table(self) -> str:
        """Write the rows and the function that applies them; "" without any."""
        return TABLE.format(rows="\n".join(f"    {x}," for x in _lines(self.rows))) if self.rows else ""

    def notes(self, module: nnx.Module) -> list[str]:
        """Fill a module as `initial_values` does with seed 0, and note what is not torch's."""
        try:
            return _starts(self.net, module, self.rows) if self.rows or self.unknown else []
        except (LookupError, ValueError, NotImplementedError) as error:
            return [f"initial values: {type(error).__name__}: {error}".partition("\n")[0]]


NORMED = re.compile(r"(weight_g|weight_orig|parametrizations\.\w+\.original\d*)$")
"""Parameters of layers with a weight or spectral norm."""


def _rows_of(make: Callable[[], nn.Module]) -> tuple[list[Row], list[str], nn.Module]:
    """Make the module; return the fills of its parameters, the names of those without a row, and itself."""
    fills = _Fills()
    with fills, profiled(fills.profile):
        net = make()
    modules = {id(module): path for path, module in net.named_modules()}
    parameters = {x.untyped_storage().data_ptr(): (name, x) for name, x in net.named_parameters()}
    rows: list[Row] = []
    for subject, function, arguments in fills.events:
        if isinstance(subject, nn.Module):
            if id(subject) in modules and not _is_inside_a_layer(net, modules[id(subject)]):
                rows.append((modules[id(subject)], LAYER))
            continue
        name = _name(subject, parameters)
        if name and not _is_default(net, name, function, arguments):
            rows.append((name, function, *_trimmed(function, arguments)))
    fills_only = [row for row in rows if row[1] != LAYER]
    if not fills_only:
        return [], [], net
    if any(NORMED.search(name) for name, _ in net.named_parameters()):
        # torch sums up the norms with which these layers start in an order of its own.
        return [], sorted({row[0].rstrip("?") for row in fills_only}), net
    rows = rows if _is_interleaved(rows, net) else fills_only
    unknown = {
        row[0]
        for row in rows
        if row[1] not in {*KNOWN, LAYER}
        or row[0].endswith("?")
        or any(isinstance(x, torch.Tensor | np.ndarray) for x in row[2:])
    }
    return [row for row in rows if row[0] not in unknown], sorted(x.rstrip("?") for x in unknown), net


def _name(tensor: Any, parameters: Mapping[int, tuple[str, torch.Tensor]]) -> str:
    """Return a parameter's name, with the range of the elements of a part; "" for other tensors."""
    if not isinstance(tensor, torch.Tensor):
        return ""
    name, parameter = parameters.get(tensor.untyped_storage().data_ptr(), ("", tensor))
    start = tensor.storage_offset() - parameter.storage_offset()
    if not name or not tensor.is_contiguous():
        return name and f"{name}?"
    return name if tensor.numel() == parameter.numel() else f"{name}[{start}:{start + tensor.numel()}]"


def _is_inside_a_layer(net: nn.Module, path: str) -> bool:
    """Whether a layer belongs to another of torch's, which draws for both: MultiheadAttention's out_proj."""
    return any(
        isinstance(net.get_submodule(path.rsplit(".", depth)[0]), nn.MultiheadAttention)
        for depth in range(1, path.count(".") + 1)
    )


def _is_default(net: nn.Module, name: str, function: str, arguments: Sequence[Any]) -> bool:
    """Whether a row sets the scale of a norm to 1 or its bias to 0, as the constructor does."""
    path, _, leaf = name.rpartition(".")
    if function not in CONSTANT or not isinstance(net.get_submodule(path), NORMS):
        return False
    value = float(arguments[0]) if arguments else float(function == "ones_")
    return value == {"weight": 1.0, "bias": 0.0}.get(leaf)


def _trimmed(function: str, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return arguments as plain numbers, without defaults at the end."""
    numbers = torch.Tensor | np.generic  # np.sqrt(6 / width), a bound in many constructors
    plain = [x.item() if isinstance(x, numbers) and np.prod(x.shape) == 1 else x for x in arguments]
    parameters = inspect.signature(getattr(init, function)).parameters if hasattr(init, function) else {}
    defaults = [x.default for x in list(parameters.values())[1:]]
    while plain and len(plain) <= len(defaults) and plain[-1] == defaults[len(plain) - 1]:
        plain.pop()
    return tuple(plain)


def _is_interleaved(rows: Sequence[Row], net: nn.Module) -> bool:
    """Whether layers draw after fills, or not in the order of the attributes."""
    layers = [path for path, function, *_ in rows if function == LAYER]
    ordered = [path for path, _ in net.named_modules() if path in {*layers}]
    functions = [row[1] for row in rows]
    first = next(i for i, function in enumerate(functions) if function != LAYER)
    return LAYER in functions[first:] or layers != ordered


def _lines(rows: list[Row]) -> Iterator[str]:
    at = 0
    while at < len(rows):
        for length in range(1, (len(rows) - at) // 2 + 1):
            count, start, written = _loop(rows, at, length)
            if count > 1:
                inner = ", ".join(_row(row, "f") for row in written)
                stop = f"{start}, {start + count}" if start else f"{count}"
                yield f"*(row for i in range({stop}) for row in ({inner},))"
                at += length * count
                break
        else:
            yield _row(rows[at])
            at += 1


def _row(row: Row, prefix: str = "") -> str:
    return f"({', '.join([f'{prefix}{row[0]!r}', *map(repr, row[1:])])})"


def _loop(rows: list[Row], at: int, length: int) -> tuple[int, int, list[Row]]:
    """Return how often a block repeats with an index that grows, its first index, and its rows with {i}."""
    first = rows[at : at + length]
    numbers = re.findall(r"(?<![\w\[:])\d+(?=\.)", first[0][0])
    for position, number in enumerate(numbers):
        written = [(_replaced(row[0], position, "{i}"), *row[1:]) for row in first]
        if any("{i}" not in row[0] for row in written):
            continue
        count = 1
        while rows[at + count * length : at + (count + 1) * length] == [
            (row[0].replace("{i}", str(int(number) + count)), *row[1:]) for row in written
        ]:
            count += 1
        if count > 1:
            return count, int(number), written
    return 1, 0, first


def _replaced(name: str, position: int, text: str) -> str:
    matches = list(re.finditer(r"(?<![\w\[:])\d+(?=\.)", name))
    if position >= len(matches):
        return name
    return name[: matches[position].start()] + text + name[matches[position].end() :]


def _starts(net: nn.Module, module: nnx.Module, rows: Sequence[Row]) -> list[str]:
    initialise(module, rows, Generator(0))
    tensors = to_torch(module, like=net, numpy=True)
    others: list[str] = []
    different: list[str] = []
    for name, parameter in net.named_parameters():
        x, y = tensors[name].astype(np.float64), parameter.detach().numpy().astype(np.float64)
        if np.allclose(x, y, rtol=ROUNDING, atol=ROUNDING * (abs(y).max(initial=0) or 1)):
            continue
        (others if _is_alike(x, y) else different).append(name)
    notes = [f"initial values of {_some(others)}: torch's distribution, other numbers"] if others else []
    return notes + ([f"initial values of {_some(different)} are not torch's"] if different else [])


def _is_alike(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether mean and deviation differ as two samples' can: by up to six deviations of the estimate."""
    spread = max(x.std(), y.std())
    near = abs(x.mean() - y.mean()) <= 6 * spread * np.sqrt(2 / x.size)
    return bool(near and abs(x.std() - y.std()) <= 6 * spread / np.sqrt(x.size))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
