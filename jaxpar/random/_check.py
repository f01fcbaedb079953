"""check: does the installed torch draw the same numbers on this processor as jaxpar.random?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from . import init
from ._generator import Generator

TORCH_VERSIONS = ("2.13", "2.14", "2.15")
"""The versions whose numbers jaxpar.random gives."""

_FLOATS = ("float32", "float64", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Draw:
    """One kind of draw: how many numbers were compared, and how many were not the same."""

    name: str
    compared: int
    different: int

    @property
    def verdict(self) -> str:
        return f"{self.different} of {self.compared} differ" if self.different else "same"


@dataclasses.dataclass(frozen=True)
class Check:
    """What `check` found. `different` holds the draws that differ from torch's; `print` shows all.

    Attributes:
      torch: the installed version of torch.
      capability: what its kernels use of this processor, "AVX2" or "AVX512" or another.
      draws: all draws that were compared.
    """

    torch: str
    capability: str
    draws: tuple[Draw, ...]

    @property
    def different(self) -> tuple[Draw, ...]:
        return tuple(draw for draw in self.draws if draw.different)

    def __bool__(self) -> bool:
        raise TypeError(
            "a Check has no truth value; ask for check.different, which is empty if all is the same"
        )

    def __str__(self) -> str:
        width = max(len(draw.name) for draw in self.draws)
        versions = f"{TORCH_VERSIONS[0]} to {TORCH_VERSIONS[-1]}"
        head = f"torch {self.torch}, {self.capability}; jaxpar.random is torch {versions}, AVX2"
        return "\n".join([head, *(f"{draw.name:{width}}  {draw.verdict}" for draw in self.draws)])


def check(n: int = 100_000, seed: int = 0) -> Check:
    """Compare each kind of draw with the installed torch.

    Args:
      n: how many numbers of each kind.
      seed: of both generators. torch's default generator is not touched.

    Raises: ModuleNotFoundError: torch is not installed.
    """
    import torch

    draws = []
    for name, (draw_numpy, draw_torch) in _kinds(torch, n).items():
        got = draw_numpy(Generator(seed))
        want = _numbers(torch, draw_torch(torch.Generator().manual_seed(seed)))
        draws.append(Draw(name, got.size, int(np.count_nonzero(_bits(got) != want))))
    return Check(torch.__version__, torch.backends.cpu.get_cpu_capability(), tuple(draws))


Draws = tuple[Callable[[Generator], np.ndarray], Callable[[Any], Any]]
"""The same numbers from one of our generators and from one of torch's."""


def _kinds(torch: ModuleType, n: int) -> dict[str, Draws]:
    def new(method: str, *args: Any, **dtype: str) -> Draws:
        dtypes = {key: getattr(torch, name) for key, name in dtype.items()}
        return (
            lambda g: getattr(g, method)(*args, **dtype),
            lambda g: getattr(torch, method)(*args, **dtypes, generator=g),
        )

    def in_place(method: str, *args: float, dtype: str = "float32") -> Draws:
        return (
            lambda g: getattr(g, method)(np.empty(n, dtype), *args),
            lambda g: getattr(torch.empty(n, dtype=getattr(torch, dtype)), method)(*args, generator=g),
        )

    def one_by_one(draws: list[Draws]) -> Draws:
        return (
            lambda g: np.concatenate([draw_numpy(g) for draw_numpy, _ in draws]),
            lambda g: torch.cat([draw_torch(g) for _, draw_torch in draws]),
        )

    kinds = {}
    for dtype in _FLOATS:
        kinds[f"rand, {dtype}"] = new("rand", n, dtype=dtype)
        kinds[f"uniform_, {dtype}"] = in_place("uniform_", -0.1, 0.3, dtype=dtype)
        few = [new("randn", k, dtype=dtype) for k in range(16)]  # torch has another kernel for these
        kinds[f"randn, fewer than 16 at a time, {dtype}"] = one_by_one(few)
        kinds[f"randn, {dtype}"] = new("randn", n, dtype=dtype)
    p = np.linspace(0, 1, n, dtype=np.float32)
    return kinds | {
        "randint, up to 2^28 numbers": new("randint", 0, 1000, (n,)),
        "randint, more": new("randint", -(2**40), 2**40, (n,)),
        "randperm": new("randperm", n),
        "bernoulli, an array of p": (
            lambda g: g.bernoulli(p),
            lambda g: torch.bernoulli(torch.tensor(p), generator=g),
        ),
        "bernoulli_, one p (dropout)": in_place("bernoulli_", 0.7),
        "trunc_normal_": (
            lambda g: init.trunc_normal_(np.empty(n, np.float32), generator=g),
            lambda g: torch.nn.init.trunc_normal_(torch.empty(n), generator=g),
        ),
    }


def _numbers(torch: ModuleType, tensor: Any) -> np.ndarray:
    # NumPy has no bfloat16.
    return _bits((tensor.view(torch.int16) if tensor.element_size() == 2 else tensor).numpy())


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"i{array.dtype.itemsize}")
