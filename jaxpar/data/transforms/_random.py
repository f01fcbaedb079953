"""Random transforms, which draw from the worker's generator, elsewhere from the one for `seed`.

Source: torchvision/transforms/transforms.py, functional.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..._arguments import Count
from ...random import Generator
from .._samplers import source
from .._worker_info import get_worker_info
from ._image import Image, Size, array, crop, pad, pair, size_of
from ._resize import check_bilinear, resize

Padding = int | Sequence[int]
MODES = ("constant", "edge", "reflect", "symmetric")


class Draws:
    def _set_seed(self, seed: int | Generator | None) -> None:
        self._own = source(None, seed, type(self).__name__)

    @property
    def _draws(self) -> Generator:
        # A generator of the transform would be copied to all processes, which would draw the same crops.
        worker = get_worker_info()
        return self._own if worker is None else worker.rng.torch_generator

    def _below(self, n: int) -> int:
        return int(self._draws.randint(0, n, (1,))[0])


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
        size: Count | Sequence[Count],
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


def _sides(padding: Padding) -> tuple[int, int, int, int]:
    sides = (padding,) if isinstance(padding, int) else tuple(padding)
    if len(sides) not in (1, 2, 4):
        raise ValueError(
            f"RandomCrop: Padding must be an int or a 1, 2, or 4 element tuple, not a {len(sides)} element "
            "tuple"
        )
    left, top, right, bottom = (sides * 4)[:4]
    return left, top, right, bottom


class RandomHorizontalFlip(Draws):
    """Mirror an image horizontally with probability `p`, or raise ValueError if that is outside of [0, 1].

    torch counterpart: `torchvision.transforms.RandomHorizontalFlip`, same draws; `seed` as for `RandomCrop`.

    >>> import numpy as np
    >>> from jaxpar.data import transforms
    >>> transforms.RandomHorizontalFlip(p=1.0, seed=0)(np.array([[1, 2]])).tolist()
    [[2, 1]]
    """

    def __init__(self, p: float = 0.5, *, seed: int | Generator | None = None):
        if not 0 <= p <= 1:
            raise ValueError(f"RandomHorizontalFlip: p is a probability, in [0, 1], and not {p}.")
        self.p = p
        self._set_seed(seed)

    def __call__(self, img: Image) -> np.ndarray:
        x = array(img, "RandomHorizontalFlip")
        # torch compares with p as a float32, too.
        return x[:, ::-1] if self._draws.rand(1)[0] < np.float32(self.p) else x

    def __repr__(self) -> str:
        return f"RandomHorizontalFlip(p={self.p})"


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
        size: Count | Sequence[Count],
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
