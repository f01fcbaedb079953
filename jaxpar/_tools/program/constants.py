"""Numbers that are constant on every device: of constants, and of the device's index."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .values import Fact

TYPES: dict[str, Any] = {
    "pred": np.bool_,
    **{
        f"{s}{n}": np.dtype(f"{'int' if s == 's' else 'uint'}{n}").type for s in "su" for n in (8, 16, 32, 64)
    },
    "f32": np.float32,
    "f64": np.float64,
}
MOST = 2**16


def _quotient(a: Any, b: Any) -> Any:
    if np.issubdtype(a.dtype, np.integer):
        all_bits = np.asarray(-1).astype(a.dtype)  # what XLA returns for a division by zero
        return np.where(b == 0, all_bits, np.sign(a) * np.sign(b) * (abs(a) // np.maximum(abs(b), 1)))
    return a / b


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": _quotient,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "negate": np.negative,
    "select": np.where,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "remainder": np.fmod,
    "shift-left": np.left_shift,
    "shift-right-arithmetic": np.right_shift,
    "shift-right-logical": lambda a, b: np.right_shift(a.view(f"u{a.itemsize}"), b.view(f"u{a.itemsize}")),
}
COMPARISONS = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
MOVES = ("bitcast", "reshape", "broadcast", "copy", "convert", "transpose", "slice", "get-tuple-element")
"""They keep an array of one scalar. A bitcast keeps it only where it changes no type."""


def constant(literal: str, kind: str) -> tuple[Any, ...] | None:
    """Read the numbers of a constant of at most one axis; None if XLA left them out, or for other types."""
    if (
        kind not in TYPES
        or not re.fullmatch(r"[\w.\-+,\s{}]*", literal)
        or "..." in literal
        or literal.count("{") > 1
    ):
        return None
    literals = [w.strip() for w in literal.strip("{} ").split(",")]
    if not literals[0] or len(literals) > MOST:
        return None
    try:
        return tuple(
            TYPES[kind](w == "true" if kind == "pred" else float(w) if kind[0] == "f" else int(w)).item()
            for w in literals
        )
    except (ValueError, OverflowError):
        return None


def evaluate(
    operation: str, attributes: str, kind: str, operands: Sequence[Fact], kinds: Sequence[str]
) -> list[Any] | None:
    """Compute an instruction on known operands, for one device or for each; None without a rule."""
    if (
        kind not in TYPES
        or not operands
        or any(v.constant is None for v in operands)
        or any(k not in TYPES for k in kinds)
    ):
        return None
    arrays = [
        np.array(v.constant.numbers, TYPES[k]) for v, k in zip(operands, kinds, strict=True) if v.constant
    ]
    with np.errstate(all="ignore"):
        if operation in MOVES:
            if operation == "bitcast" and kind != kinds[0]:
                return None
            result = arrays[0]
        elif operation == "compare":
            direction = re.search(r"direction=(\w\w)", attributes)
            if not direction:
                return None
            result = COMPARISONS[direction.group(1)](*arrays)
        elif operation in OPERATIONS:
            result = OPERATIONS[operation](*arrays)
        else:
            return None
        return np.atleast_1d(result).astype(TYPES[kind]).tolist()
