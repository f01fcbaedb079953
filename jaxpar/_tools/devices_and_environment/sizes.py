"""Numbers of bytes as people read them."""

from __future__ import annotations


def sizes(*counts: int | None) -> str:
    """All in the unit of the largest: `0.0 / 1.5 / 59.4 GiB`."""
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
