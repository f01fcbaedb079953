"""CenterCrop and RandomCrop. Source: torchvision/transforms/transforms.py, functional.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...random import Generator
from ._draws import Draws
from ._image import Image, Size, array, crop, pair

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


class RandomCrop(Draws):
    """Crop at a random position, with the draws of `torchvision.transforms.RandomCrop`.

    Args:
      size: height and width, or one number for both.
      padding: a border added first: a number; left and right, top and bottom; or left, top, right, bottom.
      pad_if_needed: whether a smaller image is padded by the deficit, on both sides.
      fill: the border's value, or one for each channel.
      padding_mode: "constant", or what NumPy's pad calls "edge", "reflect" and "symmetric".
      seed: for torch's default generator; workers have their own.

    Raises: ValueError: the image is smaller than `size`; an unknown mode; a padding of three numbers.

    >>> import numpy as np
    >>> from jaxpar.data import transforms
    >>> transforms.RandomCrop(32, padding=4, seed=0)(np.zeros((32, 32, 3), np.uint8)).shape
    (32, 32, 3)
    """

    def __init__(
        self,
        size: int | Sequence[int],
        padding: Padding | None = None,
        pad_if_needed: bool = False,
        fill: float | Sequence[float] = 0,
        padding_mode: str = "constant",
        *,
        seed: int | Generator | None = None,
    ):
        self.size = pair(size, "RandomCrop")
        if padding_mode not in MODES:
            raise ValueError(
                f"RandomCrop: Padding mode should be either constant, edge, reflect or symmetric, not "
                f"{padding_mode!r}."
            )
        self.padding = None if padding is None else _sides(padding)
        self.pad_if_needed, self.fill, self.padding_mode = pad_if_needed, fill, padding_mode
        self._set_seed(seed)

    def __call__(self, img: Image) -> np.ndarray:
        x = array(img, "RandomCrop")
        if self.padding is not None:
            x = pad(x, self.padding, self.fill, self.padding_mode)
        # torchvision pads the width before the height.
        for axis in (1, 0):
            deficit = self.size[axis] - x.shape[axis]
            if self.pad_if_needed and deficit > 0:
                sides = (deficit, 0, deficit, 0) if axis else (0, deficit, 0, deficit)
                x = pad(x, sides, self.fill, self.padding_mode)
        row, column = self._corner((x.shape[0], x.shape[1]))
        return crop(x, row, column, *self.size)

    def _corner(self, have: Size) -> Size:
        (h, w), (height, width) = self.size, have
        if height < h or width < w:
            raise ValueError(
                f"RandomCrop: Required crop size {(h, w)} is larger than input image size {(height, width)}; "
                "pad_if_needed=True makes it larger."
            )
        # torchvision draws nothing here. A draw would shift all later random numbers.
        if (height, width) == (h, w):
            return 0, 0
        return self._below(height - h + 1), self._below(width - w + 1)

    def __repr__(self) -> str:
        return f"RandomCrop(size={self.size}, padding={self.padding})"


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


def _sides(padding: Padding) -> tuple[int, int, int, int]:
    sides = (padding,) if isinstance(padding, int) else tuple(padding)
    if len(sides) not in (1, 2, 4):
        raise ValueError(
            f"RandomCrop: Padding must be an int or a 1, 2, or 4 element tuple, not a {len(sides)} element "
            "tuple"
        )
    left, top, right, bottom = (sides * 4)[:4]
    return left, top, right, bottom
