"""Whole numbers, and how an error text shows a value."""

from __future__ import annotations

import operator
from typing import Any


def whole(function: str, name: str, value: Any, least: int | None = None) -> int:
    """Return a whole number, also of NumPy; raise TypeError for anything else, ValueError below `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{function}: {name} is {value!r}; it must be a whole number.")
    if least is not None and number < least:
        raise ValueError(f"{function}: {name} is {number}; it must be {least} or more.")
    return number


def shown(value: Any) -> str:
    """Return a value for an error text: an array by type and shape, and nothing longer than a line."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"{value.dtype}{list(shape)}"
    try:
        text = " ".join(repr(value).split())
    except RuntimeError:  # an array that was donated
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."
