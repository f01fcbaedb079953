"""What both frameworks are given, to send around: values that any order adds up exactly, groups, objects."""

from __future__ import annotations

from typing import Any

import numpy as np

W = 4
GROUPS: dict[str, tuple[tuple[int, ...], ...]] = {
    "all": ((0, 1, 2, 3),),
    "pairs": ((0, 1), (2, 3)),
    "late": ((1, 2, 3),),
    "turned": ((3, 1),),
}
"""Groups that are made one after the other; a rank uses the one that it is in, if any."""
UNSORTED = ("turned",)
FLOATS, INTEGERS = ("float64", "float32"), ("int64", "int32", "uint8", "bool")
BITWISE = ("band", "bor", "bxor")
OPS = ("sum", "product", "max", "min", "mean", *BITWISE)
NOTHING = "nothing"


def dtypes(op: str) -> tuple[str, ...]:
    """Those for which torch has the operation."""
    return {"mean": FLOATS, "band": INTEGERS, "bor": INTEGERS, "bxor": INTEGERS}.get(op, FLOATS + INTEGERS)


def value(dtype: str, rank: int, shape: tuple[int, ...] = (3, 2)) -> np.ndarray:
    x = np.random.RandomState(17 * rank + 3).randint(0, 4, shape)
    return (x / 4 if dtype in FLOATS else x % 2 if dtype == "bool" else x).astype(dtype)


def piece(dtype: str, rank: int, i: int) -> np.ndarray:
    """The i-th of those that a rank scatters."""
    x = value(dtype, rank)
    return x * x.dtype.type(i % 2)


def obj(rank: int) -> dict[Any, Any]:
    """Another one on every rank, with most kinds of data in it."""
    return {
        "rank": rank,
        "nested": [(1, 2.5), {"a": None, 3: True, (1, "x"): b"\x00\xff"}, -0.0, 1e300, 2**70],
        "text": "\u00e9\U0001f600\n\x00" * (rank + 1),
        "array": value("float32", rank, (rank + 1, 2)),
        "large": np.arange(20_000) * rank,
        "scalar": np.float32(rank) / 3,
        "sets": ({1, 2}, frozenset({"a"})),
        "complex": complex(1, -0.0),
        "bad": float("inf"),
    }


def plain(x: Any) -> str:
    """An object with everything that belongs to it: types, dtypes, bytes."""
    if isinstance(x, np.ndarray | np.generic):
        return f"{type(x).__name__} {x.dtype} {x.shape} {x.tobytes().hex()}"
    if isinstance(x, dict):
        return "{" + ", ".join(f"{plain(k)}: {plain(v)}" for k, v in x.items()) + "}"
    if isinstance(x, list | tuple):
        return f"{type(x).__name__}({', '.join(map(plain, x))})"
    return f"{type(x).__name__} {x!r}"


def mine(name: str, rank: int) -> tuple[int, ...] | None:
    return next((ranks for ranks in GROUPS[name] if rank in ranks), None)
