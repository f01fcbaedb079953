"""Run a torch model in float64 throughout, whatever types its code requests; `flax_float64` is the Flax side.

The default type is process-wide and stays unchanged; tensors of the default type are created again in
float64. Modes are thread-local, so other threads are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..._typing import PyTree
from .._tensors import array_of
from .constants import Constants
from .uncompiled_mode import without_compiler

WIDE = dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64)
WIDE[torch.complex64] = torch.complex128
BITS = {torch.ops.aten.view.dtype}  # Operations on the bits of a type
IN_DEFAULT_TYPE = {"rand", "randn", "normal", "zeros", "ones", "empty", "eye", "linspace", "logspace"}
EXACT: dict[Any, Callable] = {
    torch.ops.aten.hardsigmoid_backward.default: lambda dy, x: torch.where(x.abs() < 3, dy / 6, 0.0)
}
"""Replacements of operations that round to float32 internally: torch's 1/6 has an error of 3e-8."""
FROM_NUMBERS = {torch.tensor, torch.as_tensor, torch.asarray}


@contextmanager
def in_float64(constants: Constants | None = None) -> Iterator[None]:
    with _Numbers(), _Operations(constants or Constants()):
        yield


class Within(torch.nn.Module):
    """A module that enters a context in `forward`, because each replica runs in a separate thread."""

    def __init__(self, module: torch.nn.Module, context: Callable[[], AbstractContextManager[None]]):
        super().__init__()
        self.module, self.context = module, context

    def forward(self, *args: Any, **kwargs: Any) -> PyTree:
        with self.context():
            return self.module(*args, **kwargs)


def rounded(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """Round to the nearest values of `dtype`, as float64; also works inside `in_float64`."""
    return torch.from_numpy(tensor.detach().numpy().astype(jnp.dtype(dtype)).astype(np.float64))


def widen(module: torch.nn.Module, constants: Constants, linked: Collection[str]) -> None:
    """Convert all floating tensors of a module; `linked` names the tensors that the Flax module has too."""
    named: dict[str, torch.Tensor] = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    named |= {f"{path}.{name}".lstrip("."): x for path, name, x in _attributes(module)}
    narrow = {name: x for name, x in named.items() if name not in linked and x.dtype in WIDE}
    values = {name: constants(array_of(x), name) for name, x in narrow.items()}
    module.double()
    for x in (*module.parameters(), *module.buffers()):
        x.data = wide(x.data)  # `double` skips complex tensors
    for path, name, x in _attributes(module):
        vars(module.get_submodule(path))[name] = wide(x)
    for name, value in values.items():
        path, _, leaf = name.rpartition(".")
        target = getattr(module.get_submodule(path), leaf)
        if target.is_floating_point():
            target.data.copy_(torch.from_numpy(np.array(value)))


def _attributes(module: torch.nn.Module) -> list[tuple[str, str, torch.Tensor]]:
    return [
        (path, name, x)
        for path, layer in module.named_modules()
        for name, x in vars(layer).items()
        if isinstance(x, torch.Tensor)
    ]


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(WIDE.get(tensor.dtype, tensor.dtype))


@without_compiler
class Rounding(TorchDispatchMode):
    """Perturbs the result of every forward and backward operation by up to 2**-51, relative, at random.

    With `keeps_ties`, equal numbers of a result move alike: rounding does not part what is exactly equal.
    """

    def __init__(self, seed: int, keeps_ties: bool = False):
        super().__init__()
        self.random, self.keeps_ties = np.random.RandomState(seed), keeps_ties

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> PyTree:
        result = operation(*args, **(kwargs or {}))
        # A perturbed view would be a copy, and writes to the view would no longer reach the original.
        shares = any(returned.alias_info is not None for returned in operation._schema.returns)
        return result if shares else jax.tree.map(self._moved, result)

    def _moved(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.dtype != torch.float64 or not x.numel():
            return x
        draws = self._by_value(x) if self.keeps_ties else self.random.uniform(-1, 1, tuple(x.shape))
        return x * torch.from_numpy(np.asarray(1 + 2.0**-51 * draws))

    def _by_value(self, x: torch.Tensor) -> np.ndarray:
        return draws_by_value(x.detach().cpu().numpy(), self.random.randint(2**63, dtype=np.uint64))


def draws_by_value(x: np.ndarray, key: np.uint64) -> np.ndarray:
    """Return numbers between -1 and 1, hashes of float64 numbers' bits: the same for equal numbers."""
    hashes = np.ravel(x).view(np.uint64) ^ key
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64's
        hashes = (hashes ^ (hashes >> np.uint64(shift))) * np.uint64(factor)
    return ((hashes >> np.uint64(11)) * 2.0**-52 - 1).reshape(x.shape)


class _Numbers(TorchFunctionMode):
    """Creates tensors of Python numbers in float64, before the default type rounds the numbers."""

    def __torch_function__(
        self, function: Callable, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> PyTree:
        kwargs = kwargs or {}
        if function in FROM_NUMBERS and args and not isinstance(args[0], torch.Tensor):
            # The dtype is float64 by now, but the digits were rounded first. Create the tensor again.
            dtype = function(*args, **kwargs).dtype
            if dtype.is_floating_point or dtype.is_complex:
                return function(*args, **{**kwargs, "dtype": dtype})
        return function(*args, **kwargs)


@without_compiler
class _Operations(TorchDispatchMode):
    """Widens every operation at dispatch level, below autograd and torch's own functions."""

    def __init__(self, constants: Constants):
        super().__init__()
        self.constants = constants

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> PyTree:
        kwargs = kwargs or {}
        if operation in BITS:
            return operation(*_narrowed(*args), **kwargs)
        # Before the call, so that a Python scalar in the arguments meets float64 tensors only.
        args, kwargs = self._widened(operation, args, kwargs)
        if _in_default_type(operation, args, kwargs) and kwargs.get("dtype") is None:
            kwargs["dtype"] = torch.float64
        result = EXACT.get(operation, operation)(*args, **kwargs)
        if operation._schema.is_mutable or not _is_narrow(result):
            return result
        return _again(operation, args, kwargs, result)

    def _widened(self, operation: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        infos = operation._schema.arguments
        written = [info.alias_info is not None and info.alias_info.is_write for info in infos]
        names = {info.name for info, is_written in zip(infos, written, strict=True) if is_written}
        arguments = zip(args, written, strict=False)
        return (
            tuple(x if is_written else jax.tree.map(self._given, x) for x, is_written in arguments),
            {name: x if name in names else jax.tree.map(self._given, x) for name, x in kwargs.items()},
        )

    def _given(self, x: Any) -> Any:
        """Widen an argument. Results are float64 already, so a narrow tensor existed before the run."""
        if isinstance(x, torch.Tensor) and x.dtype in WIDE:
            return torch.from_numpy(np.array(self.constants(array_of(x))))
        if not isinstance(x, torch.dtype):
            return x
        self.constants.note_cast(x)
        return WIDE.get(x, x)


def _narrowed(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.dtype]:
    return x.to(torch.float32) if x.dtype == torch.float64 and dtype.itemsize == 4 else x, dtype


def _in_default_type(operation: Any, args: tuple, kwargs: dict) -> bool:
    # These get dtype=float64 up front rather than a second run: random numbers must not be drawn twice, and
    # -1e308 overflows float32.
    name = operation._schema.name.removeprefix("aten::")
    if name in ("arange", "full"):
        return any(isinstance(x, float) for x in (*args, *kwargs.values()))
    return name in IN_DEFAULT_TYPE


def _again(operation: Any, args: tuple, kwargs: dict, result: PyTree) -> PyTree:
    accepts_dtype = any(argument.name == "dtype" for argument in operation._schema.arguments)
    if accepts_dtype and kwargs.get("dtype") is None:
        return operation(*args, **{**kwargs, "dtype": torch.float64})
    try:
        again = operation(*jax.tree.map(_real, args), **jax.tree.map(_real, kwargs))
    except (RuntimeError, TypeError, IndexError):  # requires integers
        again = result
    return jax.tree.map(lambda x: wide(x) if isinstance(x, torch.Tensor) else x, again)


def _real(x: Any) -> Any:
    is_integer = isinstance(x, torch.Tensor) and not x.is_floating_point() and not x.is_complex()
    return x.to(torch.float64) if is_integer else x


def _is_narrow(result: PyTree) -> bool:
    return any(isinstance(x, torch.Tensor) and x.dtype in WIDE for x in jax.tree.leaves(result))
