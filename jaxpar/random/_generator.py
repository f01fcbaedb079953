"""torch's CPU generator, bit for bit, in NumPy: MT19937, seeded with the low 32 bits of the seed.

_uniform.py, _normal.py and _shuffle.py turn its output into numbers as torch 2.13 does on an x86-64 processor
with AVX2 or AVX512; docs/random.md lists what differs on others, and `jaxpar.random.check` detects it.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from .._arguments import Count
from . import _normal, _shuffle, _uniform
from ._dtypes import c_name, digits, floating, is_floating, largest, name, supported
from ._state import State, from_bytes, to_bytes

A = TypeVar("A", bound=np.ndarray)
Dimensions = SupportsIndex | Sequence[SupportsIndex]

DEFAULT_SEED = 67280421310721
"""The seed of an unseeded torch.Generator."""


class Generator:
    """The stream of random numbers that `torch.Generator().manual_seed(seed)` gives on a CPU.

    Args:
      seed: -2^63 to 2^64 - 1, of which only the low 32 bits matter; torch's default seed if left out.

    Methods that end in `_` fill a NumPy array in place and return it, as torch's do with tensors. float32,
    float64, float16 and bfloat16 are the floating-point types. An array that is not contiguous is filled in
    memory order, as a tensor is.

    Raises: ValueError: a seed out of range. RuntimeError: a seed that is not an integer; numbers that torch
    refuses, with its message. NotImplementedError: a dtype that torch refuses in the same way.

    >>> from jaxpar.random import Generator
    >>> Generator(0).rand(3).round(4)
    array([0.4963, 0.7682, 0.0885], dtype=float32)
    >>> Generator(0).randperm(5).tolist()
    [4, 0, 1, 3, 2]

    torch counterpart: `torch.Generator` and the functions that take `generator=`. Sources:
    ATen/core/MT19937RNGEngine.h, ATen/CPUGeneratorImpl.cpp and the three files above.
    """

    def __init__(self, seed: SupportsIndex = DEFAULT_SEED):
        self._bits = np.random.MT19937(0)
        self.manual_seed(seed)

    def __repr__(self) -> str:
        return f"Generator(initial_seed={self._seed})"

    # ---------------------------------------------------------------------------- seeds and states

    def manual_seed(self, seed: SupportsIndex) -> Generator:
        """Starts the stream of `seed`; a normal number that was waiting is dropped."""
        # torch takes what has __index__, NumPy's integers included, but no float and no bool.
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise RuntimeError(f"manual_seed expected a long, but got {type(seed).__name__}")
        number = operator.index(seed)
        if not -(2**63) <= number < 2**64:
            raise ValueError(f"Overflow when unpacking long long: the seed {number} is not in [-2^63, 2^64)")
        seed = number % 2**64
        # RandomState seeds as torch does; np.random.MT19937(seed) would hash the seed first.
        key = np.random.RandomState(seed % 2**32).get_state(legacy=False)["state"]["key"]
        self._restore(State(seed, key, position=len(key), fresh=True, normal=None))
        return self

    def initial_seed(self) -> int:
        """The seed that the stream was started with."""
        return self._seed

    def seed(self) -> int:
        """Starts the stream of a seed from the operating system, and returns that seed."""
        self.manual_seed(int.from_bytes(os.urandom(8), "little"))
        return self._seed

    def get_state(self) -> np.ndarray:
        """[5056] uint8: what torch's `get_state` returns at the same place of the same stream."""
        inner = self._bits.state["state"]
        return to_bytes(State(self._seed, inner["key"], inner["pos"], self._fresh, self._waiting))

    def set_state(self, state: ArrayLike) -> Generator:
        """Continues from a state, of this class or of torch's CPU generator (`state.numpy()`).

        Raises: RuntimeError: bytes that are not a state. TypeError: an array that is not uint8.
        """
        self._restore(from_bytes(state))
        return self

    def _restore(self, state: State) -> None:
        self._bits.state = {"bit_generator": "MT19937", "state": {"key": state.key, "pos": state.position}}
        self._seed, self._fresh, self._waiting = state.seed, state.fresh, state.normal

    def words(self, n: Count) -> np.ndarray:
        """Return the next n 32-bit numbers, in uint64; all other draws are computed from these."""
        self._fresh = self._fresh and n == 0
        return self._bits.random_raw(n)

    def draw_seed(self) -> int:
        """One draw of 63 bits: `int(torch.empty((), dtype=torch.int64).random_())`.

        RandomSampler seeds its generator this way, and DataLoader its workers.
        """
        return int(_uniform.to_64_bits(self.words(2))[0]) % 2**63

    # ---------------------------------------------------------------------------------- new arrays

    def rand(self, *size: Dimensions, dtype: DTypeLike = np.float32) -> np.ndarray:
        """Uniform numbers in [0, 1), of shape `size`: ints, or one tuple."""
        return self.uniform_(_empty(size, dtype))

    def randn(self, *size: Dimensions, dtype: DTypeLike = np.float32) -> np.ndarray:
        """Standard normal numbers of shape `size`: ints, or one tuple."""
        return self.normal_(_empty(size, dtype))

    def randint(
        self, low: int = 0, high: Any = None, size: Any = None, *, dtype: DTypeLike = np.int64
    ) -> np.ndarray:
        """Integers from low to high - 1: `randint(low, high, size)`, or `randint(high, size)`."""
        if size is None:
            low, high, size = 0, low, high
        elif high is None:
            low, high = 0, low
        if size is None:
            raise TypeError("randint: give the shape, randint(high, size) or randint(low, high, size)")
        return self.random_(_empty((size,), dtype), low, high)

    def randperm(self, n: SupportsIndex, *, dtype: DTypeLike = np.int64) -> np.ndarray:
        """[n]: the numbers 0 to n - 1 in random order; draws n - 1 32-bit numbers.

        Raises: NotImplementedError: n of 2^32 / 20 or more, for which torch uses a different algorithm.
        """
        n = operator.index(n)
        dtype = supported(dtype, "randperm")
        most = 2 ** digits(dtype) + (1 if is_floating(dtype) else -1)
        if n < 0:
            raise RuntimeError(f"Trying to create tensor with negative dimension {n}: [{n}]")
        if n > most:
            raise RuntimeError(f"n cannot be greater than {most} for {name(dtype)} type.")
        if n >= _shuffle.LIMIT:
            raise NotImplementedError(
                f"randperm: n={n}; from {_shuffle.LIMIT} on torch shuffles in another way, which is not here."
            )
        return _shuffle.shuffled(self.words, n).astype(dtype, copy=False)

    def bernoulli(self, p: ArrayLike) -> np.ndarray:
        """Zeros and ones of p's shape and dtype; `p` holds the probability of each one."""
        p = np.asarray(p)
        return self.bernoulli_(np.empty(p.shape, floating(p.dtype, "bernoulli_tensor_cpu_p_")), p)

    # ------------------------------------------------------------------------------------- in place

    def uniform_(self, x: A, low: float = 0.0, high: float = 1.0) -> A:
        """Fill with uniform numbers in [low, high)."""
        dtype = floating(_dtype(x), "check_uniform_bounds")
        for bound, argument in ((low, "from"), (high, "to")):
            if not abs(bound) <= largest(dtype):
                raise RuntimeError(f"{argument} is out of bounds for {c_name(dtype)}")
        if not low <= high:
            raise RuntimeError(
                f"uniform_ expects to return a [from, to) range, but found from={low:g} > to={high:g}"
            )
        if not high - low <= largest(dtype):
            raise RuntimeError(
                f"uniform_ expects to-from <= std::numeric_limits<{name(dtype)}>::max(), but found "
                f"to={high:g} and from={low:g} which result in to-from to exceed the limit"
            )
        return _in_memory_order(x, lambda out: _uniform.fill(self.words, out, low, high))

    def normal_(self, x: A, mean: float = 0.0, std: float = 1.0) -> A:
        """Fill with normal numbers.

        Fewer than 16 at a time are made in pairs, and the second of a pair may wait for the next such call.
        16 or more use a different algorithm, as in torch, which ignores a waiting number.
        """
        floating(_dtype(x), "normal_kernel_cpu")
        if not std >= 0:
            raise RuntimeError(f"normal expects std >= 0.0, but found std {std:g}")
        # torch's fast kernel needs a contiguous array; all others take the path for small ones.
        if x.size >= 16 and x.flags.c_contiguous:
            return _in_memory_order(x, lambda out: _normal.fill(self.words, out, mean, std))
        return _in_memory_order(x, lambda out: self._normal_pairs(out, mean, std))

    def bernoulli_(self, x: A, p: float | np.ndarray = 0.5) -> A:
        """Fill with ones, of probability `p`, and zeros. `p` is a number, or an array that broadcasts.

        A number is compared with float64 draws, a float32 array with float32 ones, as in torch.
        `F.dropout(input, p)` is `input * mask / (1 - p)` with `mask = bernoulli_(x, 1 - p)`.
        """
        supported(_dtype(x), "bernoulli_scalar_cpu_")
        if not isinstance(p, np.ndarray):
            if not 0 <= p <= 1:
                raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p:g}")
            return _in_memory_order(x, lambda out: self._bernoulli(out, np.asarray(p, np.float64)))
        kind = _uniform.compute_dtype(floating(p.dtype, "bernoulli_tensor_cpu_p_"))
        wide = p.astype(kind)
        if not ((wide >= 0) & (wide <= 1)).all():
            raise RuntimeError("Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
        wide = np.broadcast_to(wide, x.shape).transpose(_axes(x))
        return _in_memory_order(x, lambda out: self._bernoulli(out, wide.reshape(-1)))

    def random_(self, x: A, low: int | None = None, high: int | None = None) -> A:
        """Fill with integers: low to high - 1; 0 to low - 1 without `high`; without both, all those that the
        dtype has from 0 on (of a floating-point type, all up to 2^digits).
        """
        dtype = supported(_dtype(x), "random_")
        if low is None:
            span = 2 ** digits(dtype) + is_floating(dtype)
            return _in_memory_order(x, lambda out: self._integers(out, 0, span, dtype.itemsize == 8))
        low, high = (0, low) if high is None else (low, high)
        _check_range(low, high, dtype)
        # From 2^28 numbers on, torch takes 64 bits for each, so that the remainder stays nearly uniform.
        return _in_memory_order(x, lambda out: self._integers(out, low, high - low, high - low >= 2**28))

    # ------------------------------------------------------------------ filling a contiguous array

    def _normal_pairs(self, out: np.ndarray, mean: float, std: float) -> None:
        n = out.size
        waiting = [] if self._waiting is None or n == 0 else [self._waiting]
        values = np.concatenate([waiting, _normal.pairs(self.words, (n - len(waiting) + 1) // 2)])
        if n:
            self._waiting = float(values[n]) if len(values) > n else None
        values = _normal.shift(values[:n], mean, std)
        # torch converts a float64 to a half by way of float32, which rounds twice.
        out.reshape(-1)[...] = values.astype(_uniform.compute_dtype(out.dtype))

    def _bernoulli(self, out: np.ndarray, p: np.ndarray) -> None:
        flat = out.reshape(-1)
        for start in range(0, flat.size, _uniform.BLOCK):
            part = flat[start : start + _uniform.BLOCK]
            u = _uniform.unit_interval(self.words, part.size, p.dtype)
            part[...] = u < (p[start : start + part.size] if p.ndim else p)

    def _integers(self, out: np.ndarray, low: int, span: int, doubled: bool) -> None:
        flat = out.reshape(-1)
        for start in range(0, flat.size, _uniform.BLOCK):
            part = flat[start : start + _uniform.BLOCK]
            integers = _uniform.to_64_bits(self.words(2 * part.size)) if doubled else self.words(part.size)
            # Sum and view wrap as in C++, so that negative numbers come out.
            part[...] = (integers % np.uint64(span) + np.uint64(low % 2**64)).view(np.int64)


def _check_range(low: int, high: int, dtype: np.dtype) -> None:
    if not low < high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    if is_floating(dtype):
        least, most = -(2 ** digits(dtype)), 2 ** digits(dtype)
    else:
        most = 2 ** digits(dtype) - 1
        least = 0 if dtype.kind in "ub" else -most - 1
    for bound, argument in ((low, "from"), (high - 1, "to - 1")):
        if not least <= bound <= most:
            raise RuntimeError(f"{argument} is out of bounds for {c_name(dtype)}")


def _empty(size: tuple[Any, ...], dtype: DTypeLike) -> np.ndarray:
    shape = size[0] if len(size) == 1 and not isinstance(size[0], SupportsIndex) else size
    shape = tuple(operator.index(n) for n in shape)
    for n in shape:
        if n < 0:
            raise RuntimeError(f"Trying to create tensor with negative dimension {n}: {list(shape)}")
    return np.empty(shape, dtype)


def _dtype(x: object) -> np.dtype:
    if not isinstance(x, np.ndarray):
        raise TypeError(f"expected a numpy array to fill, but got {type(x).__name__}")
    if not x.flags.writeable:
        raise ValueError(
            "the array to fill is read-only, as that of a jax.Array is; fill a copy, np.array(x)"
        )
    if any(n > 1 and stride == 0 for n, stride in zip(x.shape, x.strides, strict=True)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single "
            "memory location. Please clone() the tensor before performing the operation."
        )
    return x.dtype


def _axes(x: np.ndarray) -> list[int]:
    return sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))


def _in_memory_order(x: A, fill: Callable[[np.ndarray], None]) -> A:
    """Call `fill` with x, or with a contiguous array that is copied to x in memory order."""
    if x.flags.c_contiguous:
        fill(x)
        return x
    transposed = x.transpose(_axes(x))
    contiguous = np.empty(transposed.shape, x.dtype)
    fill(contiguous)
    transposed[...] = contiguous
    return x
