"""check: does the torch that is installed draw on this processor what is drawn here?

torch's numbers depend a little on the processor and may change with its version. This compares each
kind of draw with torch itself and says which differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from . import init
from ._generator import Generator

TORCH_VERSION = "2.13"
"""The version whose numbers these are."""

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
    """What `check` found. `different` are the draws that are not torch's here; `print` shows all.

    Attributes:
      torch: the version of the torch that is installed.
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
        head = f"torch {self.torch}, {self.capability}; jaxpar.random is torch {TORCH_VERSION}, AVX2"
        return "\n".join([head, *(f"{draw.name:{width}}  {draw.verdict}" for draw in self.draws)])


def check(n: int = 100_000, seed: int = 0) -> Check:
    """Compare each kind of draw with the torch that is installed.

    Args:
      n: how many numbers of each kind.
      seed: of both generators. torch's default generator is left alone.

    Raises:
      ModuleNotFoundError: torch is not installed.
    """
    import torch

    draws = []
    for name, ours, theirs in _kinds(torch, n):
        got = ours(Generator(seed))
        want = _numbers(torch, theirs(torch.Generator().manual_seed(seed)))
        draws.append(Draw(name, got.size, int(np.count_nonzero(_bits(got) != want))))
    return Check(torch.__version__, torch.backends.cpu.get_cpu_capability(), tuple(draws))


Kind = tuple[str, Callable[[Generator], Any], Callable[[Any], Any]]


def _kinds(torch: Any, n: int) -> list[Kind]:
    kinds: list[Kind] = []
    for dtype in _FLOATS:
        kinds += _float_kinds(torch, n, dtype, getattr(torch, dtype))
    small, large = (0, 1000), (-(2**40), 2**40)
    p = np.linspace(0, 1, n, dtype=np.float32)
    return [
        *kinds,
        ("randint, up to 2^28 numbers", lambda g: g.randint(*small, (n,)), _randint(torch, small, n)),
        ("randint, more", lambda g: g.randint(*large, (n,)), _randint(torch, large, n)),
        ("randperm", lambda g: g.randperm(n), lambda g: torch.randperm(n, generator=g)),
        (
            "bernoulli, an array of p",
            lambda g: g.bernoulli(p),
            lambda g: torch.bernoulli(torch.tensor(p), generator=g),
        ),
        (
            "bernoulli_, one p (dropout)",
            lambda g: g.bernoulli_(np.empty(n, np.float32), 0.7),
            lambda g: torch.empty(n).bernoulli_(0.7, generator=g),
        ),
        (
            "trunc_normal_",
            lambda g: init.trunc_normal_(np.empty(n, np.float32), generator=g),
            lambda g: torch.nn.init.trunc_normal_(torch.empty(n), generator=g),
        ),
    ]


def _float_kinds(torch: Any, n: int, dtype: str, theirs: Any) -> list[Kind]:
    return [
        (
            f"rand, {dtype}",
            lambda g: g.rand(n, dtype=dtype),
            lambda g: torch.rand(n, dtype=theirs, generator=g),
        ),
        (
            f"uniform_, {dtype}",
            lambda g: g.uniform_(np.empty(n, dtype), -0.1, 0.3),
            lambda g: torch.empty(n, dtype=theirs).uniform_(-0.1, 0.3, generator=g),
        ),
        (
            f"randn, fewer than 16 at a time, {dtype}",
            lambda g: np.concatenate([g.randn(k, dtype=dtype) for k in range(16)]),
            lambda g: torch.cat([torch.randn(k, dtype=theirs, generator=g) for k in range(16)]),
        ),
        (
            f"randn, {dtype}",
            lambda g: g.randn(n, dtype=dtype),
            lambda g: torch.randn(n, dtype=theirs, generator=g),
        ),
    ]


def _randint(torch: Any, bounds: tuple[int, int], n: int) -> Callable[[Any], Any]:
    return lambda g: torch.randint(*bounds, (n,), generator=g)


def _numbers(torch: Any, tensor: Any) -> np.ndarray:
    """The tensor's bits; NumPy has no bfloat16."""
    return _bits((tensor.view(torch.int16) if tensor.element_size() == 2 else tensor).numpy())


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"i{array.dtype.itemsize}")
