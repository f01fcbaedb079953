"""Resize: bilinear, every pixel of the image counts (antialias), with PIL's pixels.

Arrays are resized in NumPy with PIL's weights: first along rows, then along columns. Bytes are exact; Pillow
13 takes columns first for some sizes, so a few bytes of its images are one apart from these. Floats are PIL's
mode F, and torch.nn.functional.interpolate(antialias=True).

Source: Pillow, src/libImaging/Resample.c; torchvision/transforms/functional.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._arguments import Count
from ._image import Image, Size, array, is_pil, pair, size_of

BITS = 22
"""Fractional bits of PIL's weights: 32, less 8 for a byte and 2 to spare."""

BILINEAR = 2
"""PIL's number for bilinear interpolation."""


class Resize:
    """Resize an image, as `torchvision.transforms.Resize` does PIL images.

    Args:
      size: height and width; or one number for the shorter side, while the ratio stays.
      interpolation: "bilinear", the only one here.
      max_size: what the longer side may be at most, if `size` is one number.
      antialias: True, the only one here.

    Raises: ValueError: a different interpolation; a `max_size` that is not above `size`.

    >>> import numpy as np
    >>> from jaxpar.data import transforms
    >>> transforms.Resize((16, 24))(np.zeros((32, 32, 3), np.uint8)).shape
    (16, 24, 3)
    """

    def __init__(
        self,
        size: Count | Sequence[Count],
        interpolation: str = "bilinear",
        max_size: int | None = None,
        antialias: bool = True,
    ):
        check_bilinear(interpolation, antialias, "Resize")
        self.short = size if isinstance(size, int) else size[0] if len(size) == 1 else None
        self.size, self.max_size = pair(size, "Resize"), max_size
        if max_size is not None and (self.short is None or max_size <= self.short):
            raise ValueError(
                f"Resize: max_size = {max_size} must be strictly greater than the requested size for the "
                f"smaller edge size = {size}, which is one number then."
            )

    def __call__(self, img: Image) -> np.ndarray:
        return resize(img, self._size(*size_of(img, "Resize")), "Resize")

    def _size(self, height: int, width: int) -> Size:
        if self.short is None:
            return self.size
        # torchvision truncates both sides rather than rounding.
        short, long = self.short, int(self.short * max(height, width) / min(height, width))
        if self.max_size is not None and long > self.max_size:
            short, long = int(self.max_size * short / long), self.max_size
        return (long, short) if width <= height else (short, long)

    def __repr__(self) -> str:
        return f"Resize(size={self.size if self.short is None else self.short}, max_size={self.max_size})"


def check_bilinear(interpolation: Any, antialias: Any, function: str) -> None:
    if getattr(interpolation, "value", interpolation) not in ("bilinear", BILINEAR) or antialias is not True:
        raise ValueError(
            f"{function}: interpolation={interpolation!r} and antialias={antialias!r} are not here; only "
            "'bilinear' and True are. Resize with PIL before it."
        )


def resize(img: Image, size: Size, function: str) -> np.ndarray:
    if is_pil(img):
        if img.mode in ("P", "PA"):
            array(img, function)  # raises
        return array(img.resize((size[1], size[0]), BILINEAR), function)
    x = array(img, function)
    if x.dtype.kind not in "fu" or (x.dtype.kind == "u" and x.dtype != np.uint8):
        raise TypeError(
            f"{function}: pixels are uint8 or floats, not {x.dtype}; img.astype(np.float32) makes some."
        )
    for axis in (1, 0):
        if x.shape[axis] != size[axis]:
            x = _resample(x, axis, size[axis])
    return x


def _resample(x: np.ndarray, axis: int, n: int) -> np.ndarray:
    """Resample one axis: every new pixel is a weighted sum of `taps` neighbours."""
    first, weights = _weights(x.shape[axis], n)
    number: Any = np.float64 if x.dtype.kind == "f" else np.int32
    shape = (-1, *[1] * (x.ndim - 1 - axis))
    total = np.zeros((*x.shape[:axis], n, *x.shape[axis + 1 :]), number)
    if x.dtype == np.uint8:
        weights = np.floor(0.5 + weights * 2**BITS).astype(np.int32)
        # Half a unit, so that the shift below rounds to nearest.
        total += 2 ** (BITS - 1)
    for tap, weight in enumerate(weights.T):
        pixels = np.minimum(first + tap, x.shape[axis] - 1)  # a tap beyond the border weighs nothing
        total += x.take(pixels, axis).astype(number) * weight.reshape(shape)
    return (total >> BITS if x.dtype == np.uint8 else total).astype(x.dtype)


def _weights(old: int, new: int) -> tuple[np.ndarray, np.ndarray]:
    """Return [new] first pixels and [new, taps] weights, summed in PIL's order, which fixes the last bit."""
    scale = old / new
    reach = max(scale, 1.0)
    center = (np.arange(new) + 0.5) * scale
    first = np.maximum((center - reach + 0.5).astype(np.intp), 0)
    last = np.minimum((center + reach + 0.5).astype(np.intp), old)
    pixels = first[:, None] + np.arange((last - first).max())
    distance = np.abs((pixels - center[:, None] + 0.5) * (1.0 / reach))
    weights = np.where(pixels < last[:, None], np.maximum(1.0 - distance, 0.0), 0.0)
    # `accumulate` adds from left to right like PIL's loop; `sum` has an order of its own.
    return first, weights / np.add.accumulate(weights, axis=1)[:, -1:]
