"""Changes that turn one array into a second: scales, activations, orders and types. Needs NumPy alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from .._comparison_data import Cause
from .._tensors import widened

EQUAL = 1e-10
SINGLE = 2.0**-20  # how far float32 values may be from float64 ones: a few roundings
# A cause explains a difference if it leaves at most this share of the difference, and at most SINGLE.
SHARE = 1e-5


def tolerance(before: float) -> float:
    """Return the relative error that a cause may leave of `before`, the error without a departure."""
    # A small part may remain, because tables of float32, such as rotary positions, may differ by rounding.
    return max(EQUAL, min(SINGLE, SHARE * before)) if math.isfinite(before) else EQUAL


def relative_error(c: np.ndarray, r: np.ndarray) -> float:
    """Return max|c - r| / max|r|; infinite if the shapes or the positions of NaNs and infinities differ."""
    if c.shape != r.shape or not np.array_equal(np.isfinite(c), np.isfinite(r)):
        return math.inf
    finite = np.isfinite(r)
    if not finite.any():
        return 0.0
    error = float(np.abs(widened(c) - widened(r))[finite].max())
    size = float(np.abs(widened(r))[finite].max())
    return error / size if size else (math.inf if error else 0.0)


def roots(sizes: Iterable[int]) -> dict[str, float]:
    """Return the usual scales with their descriptions, the likeliest first."""
    by_name: dict[str, float] = {}
    sizes = [n for n in dict.fromkeys(sizes) if n > 1]
    for n in sizes:
        by_name |= {f"1 / the root of {n}": n**-0.5, f"the root of {n}": n**0.5}
    for n in sizes:
        by_name |= {f"1 / {n}": 1 / n, str(n): float(n)}
    return by_name | {"2": 2.0, "1 / 2": 0.5, "-1": -1.0}


def described(scale: float, sizes: Iterable[int]) -> str:
    """Describe a scale as a number, and as a root if it is one: `0.125, 1 / the root of 64`."""
    for name, value in roots(sizes).items():
        if "root" in name and math.isclose(scale, value, rel_tol=1e-12):
            return f"{scale:.6g}, {name}"
    return f"{scale:.6g}"


FEWEST = 4  # elements; a smaller array may be a multiple by chance


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu(approximate=False)": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "gelu(approximate=True)": lambda x: x * _sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
    "silu": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
}
SAMPLE = 1024  # elements to which an activation is applied first


def array_changes(flax_array: np.ndarray, torch_array: np.ndarray) -> list[Cause]:
    """Return the changes of torch's whole array that yield Flax's, the closest first."""
    if (
        flax_array.shape != torch_array.shape
        or flax_array.size < 2
        or not np.isfinite(widened(torch_array)).all()
    ):
        return []
    candidates = (Cause(text, relative_error(flax_array, x)) for text, x in _changes(flax_array, torch_array))
    causes = sorted((c for c in candidates if c.relative <= EQUAL), key=lambda c: c.relative)
    return causes or _rounded(flax_array, torch_array)


def _changes(flax_array: np.ndarray, torch_array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    if torch_array.dtype.kind in "iu":
        shift = int(flax_array.flat[0]) - int(torch_array.flat[0])
        yield f"positions are torch's (they are shifted by {shift})", torch_array + shift
    elif torch_array.dtype.kind == "f" and flax_array.size >= FEWEST:
        # The ratio of the largest elements has the most correct digits.
        largest = np.unravel_index(np.abs(torch_array).argmax(), torch_array.shape)
        scale = float(flax_array[largest] / torch_array[largest]) if torch_array[largest] else 0.0
        text = f"there is no factor (it is multiplied by {described(scale, reversed(torch_array.shape))})"
        yield text, torch_array * scale
        for name, activation in ACTIVATIONS.items():
            with np.errstate(over="ignore"):
                sample = activation(torch_array.reshape(-1)[:SAMPLE])
                if relative_error(flax_array.reshape(-1)[:SAMPLE], sample) <= EQUAL:
                    yield f"no activation is applied ({name} is)", activation(torch_array)
    for axis, length in enumerate(torch_array.shape):
        if length > 1:
            yield f"axis {axis} has torch's order (it is reversed)", np.flip(torch_array, axis)
            for by in (1, -1):
                yield (
                    f"axis {axis} has torch's places (rows are rolled by {by})",
                    np.roll(torch_array, by, axis),
                )
            yield from blocks(torch_array, axis)
    for a, b in itertools.combinations(range(torch_array.ndim), 2):
        if torch_array.shape[a] == torch_array.shape[b] > 1:
            yield f"axes are torch's (axes {a} and {b} are swapped)", torch_array.swapaxes(a, b)


def blocks(x: np.ndarray, axis: int) -> Iterator[tuple[str, np.ndarray]]:
    """Read an axis of (heads, size) as (size, heads), or of (3, heads, size) as (heads, 3, size)."""
    x = np.moveaxis(x, axis, -1)
    length = x.shape[-1]
    divisors = [n for n in range(2, length) if length % n == 0]
    for first, second in itertools.product(divisors, divisors):
        last = length // (first * second)
        # With a third factor, one of the two is a number of parts: real and imaginary, or q, k and v. Other
        # splits into three are implausible, and there are many.
        if length % (first * second) or (last > 1 and min(first, second) > 3):
            continue
        split = x.reshape(*x.shape[:-1], first, second, last)
        turned = split.swapaxes(-2, -3).reshape(x.shape)
        right, wrong = ((*pair, last)[: 2 + (last > 1)] for pair in ((second, first), (first, second)))
        yield f"axis {axis} is read as {right} (it is read as {wrong})", np.moveaxis(turned, -1, axis)


def _rounded(flax_array: np.ndarray, torch_array: np.ndarray) -> list[Cause]:
    """Recognize arrays that are equal except that one side's values are rounded to float32."""
    error = relative_error(flax_array, torch_array)
    if torch_array.dtype.kind != "f" or error > SINGLE:
        return []
    narrow = [np.array_equal(x.astype(np.float32).astype(x.dtype), x) for x in (flax_array, torch_array)]
    if narrow == [True, False]:
        return [Cause("it is in float64, as torch's is (its values are those of float32)", error)]
    if narrow == [False, True]:
        return [Cause("it is a float32 table, as torch's is (its values are those of float64)", error)]
    return []
