"""RandomResizedCrop: a part of random size, shape and position, resized."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...random import Generator
from ._draws import Draws
from ._image import Image, Size, crop, pair, size_of
from ._resize import check_bilinear, resize

ATTEMPTS = 10
"""Shapes drawn before falling back to the center of the image."""


class RandomResizedCrop(Draws):
    """Crop a random part of an image and resize it to `size`.

    Args:
      size: height and width, or one number for both.
      scale: how much of the image's area, from and to.
      ratio: width by height of the part, from and to.
      interpolation, antialias: as for `Resize`. seed: as for `RandomCrop`.

    Raises: TypeError, ValueError: a scale or ratio that is not an increasing pair of positive numbers; as
    `Resize`.

    torch counterpart: `torchvision.transforms.RandomResizedCrop`, with the same draws. It only warns about a
    decreasing range. Source: torchvision/transforms/transforms.py.

    >>> import numpy as np
    >>> from jaxpar.data import transforms
    >>> transforms.RandomResizedCrop(24, seed=0)(np.zeros((32, 32, 3), np.uint8)).shape
    (24, 24, 3)
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: str = "bilinear",
        antialias: bool = True,
        *,
        seed: int | Generator | None = None,
    ):
        check_bilinear(interpolation, antialias, "RandomResizedCrop")
        self.size = pair(size, "RandomResizedCrop")
        self.scale, self.ratio = _range(scale, "Scale"), _range(ratio, "Ratio")
        self._set_seed(seed)

    def __call__(self, img: Image) -> np.ndarray:
        row, column, height, width = self._part(*size_of(img, "RandomResizedCrop"))
        return resize(crop(img, row, column, height, width), self.size, "RandomResizedCrop")

    def _part(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Draw top, left, height and width as torchvision does."""
        # float32, as torch takes the logarithm of a float32 tensor.
        low, high = np.log(np.asarray(self.ratio, np.float32))
        for _ in range(ATTEMPTS):
            # Draw in torchvision's order: area, ratio, and the position only once a shape fits.
            area = height * width * float(self._uniform(*self.scale))
            ratio = float(np.exp(self._uniform(float(low), float(high))))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return self._below(height - h + 1), self._below(width - w + 1), h, w
        h, w = self._middle(height, width)
        return (height - h) // 2, (width - w) // 2, h, w

    def _middle(self, height: int, width: int) -> Size:
        low, high = self.ratio
        if width / height < low:
            return round(width / low), width
        if width / height > high:
            return height, round(height * high)
        return height, width

    def _uniform(self, low: float, high: float) -> np.float32:
        return self._draws.uniform_(np.empty(1, np.float32), low, high)[0]

    def __repr__(self) -> str:
        return f"RandomResizedCrop(size={self.size}, scale={self.scale}, ratio={self.ratio})"


def _range(limits: Sequence[float], name: str) -> tuple[float, float]:
    if not isinstance(limits, Sequence) or len(limits) != 2:
        raise TypeError(f"RandomResizedCrop: {name} should be a sequence of two numbers, not {limits!r}.")
    low, high = limits
    if not 0 < low <= high:
        raise ValueError(
            f"RandomResizedCrop: Scale and ratio should be of kind (min, max), and above 0; {name} is "
            f"{limits}."
        )
    return low, high
