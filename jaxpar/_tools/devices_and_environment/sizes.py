"""Readable numbers of bytes."""

from __future__ import annotations


def sizes(*counts: int | None) -> str:
    """Format several numbers of bytes in the largest one's unit.

    >>> sizes(0, 1610612736, None)
    '0.0 / 1.5 / - GiB'
    """
    largest, unit = max((n for n in counts if n is not None), default=None), "B"
    if largest is None:
        return " / ".join("-" for _ in counts)
    scale = 1
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if largest < 1024 * scale:
            break
        scale, unit = 1024 * scale, larger
    digits = 0 if unit == "B" else 1
    return " / ".join("-" if n is None else f"{n / scale:.{digits}f}" for n in counts) + f" {unit}"
