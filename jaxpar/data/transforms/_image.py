"""Images of PIL, or arrays [height, width] or [height, width, channels].

PIL is not imported: its images have methods, which release the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Image: TypeAlias = Any
Size = tuple[int, int]
"""Height and width."""


def is_pil(img: Image) -> bool:
    return hasattr(img, "convert") and hasattr(img, "getbands")


def array(img: Image, function: str) -> np.ndarray:
    """Return the pixels; TypeError or ValueError if it is not an image, or has a palette."""
    if is_pil(img):
        if img.mode in ("P", "PA"):
            raise ValueError(
                f"{function}: the image has a palette (mode {img.mode}), so its numbers are no colours: "
                "img.convert('RGB')."
            )
        return np.asarray(img) * np.uint8(255) if img.mode == "1" else np.asarray(img)
    if not isinstance(img, np.ndarray):
        raise TypeError(
            f"{function}: img should be PIL Image or ndarray. Got {type(img)}; np.asarray makes one."
        )
    if img.ndim not in (2, 3):
        raise ValueError(
            f"{function}: img should be 2/3 dimensional. Got {img.ndim} dimensions, {img.shape}; an image is "
            "[height, width] or [height, width, channels]."
        )
    return img


def size_of(img: Image, function: str) -> Size:
    if is_pil(img):
        return img.size[1], img.size[0]
    return array(img, function).shape[:2]


def crop(img: Image, row: int, column: int, height: int, width: int) -> Image:
    if is_pil(img):
        return img.crop((column, row, column + width, row + height))
    return img[row : row + height, column : column + width]


def pair(size: int | Sequence[int], function: str) -> Size:
    sides = (size, size) if isinstance(size, int) else tuple(size) * (2 if len(size) == 1 else 1)
    if len(sides) != 2:
        raise ValueError(f"{function}: Please provide only two dimensions (h, w) for size, not {size!r}.")
    return sides
