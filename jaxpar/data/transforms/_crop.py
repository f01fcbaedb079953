"""CenterCrop, and borders. Source: torchvision/transforms/transforms.py, functional.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._image import Image, array, crop, pair

Padding = int | Sequence[int]
MODES = ("constant", "edge", "reflect", "symmetric")


class CenterCrop:
    """Crop the center as `torchvision.transforms.CenterCrop`; a smaller image is first padded with zeros.

    Args:
      size: height and width, or one number for both.

    >>> import numpy as np
    >>> from jaxpar.data import transforms
    >>> transforms.CenterCrop(24)(np.zeros((32, 32, 3), np.uint8)).shape
    (24, 24, 3)
    """

    def __init__(self, size: int | Sequence[int]):
        self.size = pair(size, "CenterCrop")

    def __call__(self, img: Image) -> np.ndarray:
        x = array(img, "CenterCrop")
        deficit = [max(0, want - have) for want, have in zip(self.size, x.shape, strict=False)]
        (more_h, more_w), (h, w) = deficit, self.size
        if any(deficit):
            x = pad(x, (more_w // 2, more_h // 2, (more_w + 1) // 2, (more_h + 1) // 2))
        row, column = (round((have - want) / 2) for have, want in zip(x.shape, self.size, strict=False))
        return crop(x, row, column, h, w)

    def __repr__(self) -> str:
        return f"CenterCrop(size={self.size})"


def pad(
    x: np.ndarray, sides: Sequence[int], fill: float | Sequence[float] = 0, mode: str = "constant"
) -> np.ndarray:
    left, top, right, bottom = sides
    if mode != "constant":
        return np.pad(x, [(top, bottom), (left, right), (0, 0)][: x.ndim], mode)  # type: ignore[call-overload]
    height, width = x.shape[:2]
    out = np.empty((height + top + bottom, width + left + right, *x.shape[2:]), x.dtype)
    out[...] = fill
    out[top : top + height, left : left + width] = x
    return out
