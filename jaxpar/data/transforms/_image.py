"""Images of PIL, or arrays [height, width] or [height, width, channels].

PIL is not imported: its images have methods, which release the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..._arguments import Count

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


def pair(size: Count | Sequence[Count], function: str) -> Size:
    sides = (size, size) if isinstance(size, int) else tuple(size) * (2 if len(size) == 1 else 1)
    if len(sides) != 2:
        raise ValueError(f"{function}: Please provide only two dimensions (h, w) for size, not {size!r}.")
    return sides


class Compose:
    """Apply transforms, or any functions, in order, as `torchvision.transforms.Compose`.

    >>> from jaxpar.data import transforms
    >>> transforms.Compose([abs, float])(-2)
    2.0
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]):
        self.transforms = transforms

    def __call__(self, img: Any) -> Any:
        for transform in self.transforms:
            img = transform(img)
        return img

    def __repr__(self) -> str:
        return f"Compose({list(self.transforms)})"


class Normalize:
    """`torchvision.transforms.Normalize` for channels last: (img - mean) / std, in the image's precision.

    Raises: TypeError: the image is not of a floating type; `ToArray` comes first. ValueError: a wrong number
      of channels; a standard deviation of 0.

    >>> import numpy as np
    >>> from jaxpar.data import transforms
    >>> transforms.Normalize([0.5] * 3, [0.2] * 3)(np.zeros((32, 32, 3), np.float32)).shape
    (32, 32, 3)
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]):
        self.mean, self.std = mean, std

    def __call__(self, img: np.ndarray) -> np.ndarray:
        x = array(img, "Normalize")
        if x.dtype.kind != "f":
            raise TypeError(
                f"Normalize: Input tensor should be a float tensor. Got {x.dtype}; put ToArray before it."
            )
        mean, std = np.asarray(self.mean, x.dtype), np.asarray(self.std, x.dtype)
        if not std.all():
            raise ValueError(
                f"Normalize: std evaluated to zero after conversion to {x.dtype}, leading to division by "
                f"zero."
            )
        for name, numbers in (("mean", mean), ("std", std)):
            if numbers.size not in (1, x.shape[-1]) or x.ndim != 3:
                raise ValueError(
                    f"Normalize: {name} has {numbers.size} numbers, and the image of shape {x.shape} needs "
                    "one for each channel, its last axis."
                )
        return (x - mean) / std

    def __repr__(self) -> str:
        return f"Normalize(mean={self.mean}, std={self.std})"


class ToArray:
    """Return a copy [height, width, channels], in float32 from 0 to 1 if the image has bytes.

    A gray image gets a channel. Other types keep their numbers, as in torch.

    Raises: TypeError, ValueError: not an image, or one with a palette.

    torch counterpart: `torchvision.transforms.ToTensor`, whose result is [channels, height, width].

    >>> import numpy as np
    >>> from jaxpar.data import transforms
    >>> transforms.ToArray()(np.zeros((32, 32, 3), np.uint8)).shape
    (32, 32, 3)
    """

    def __call__(self, img: Image) -> np.ndarray:
        x = array(img, "ToArray")
        x = x[:, :, None] if x.ndim == 2 else x
        return (
            np.divide(x, np.float32(255), dtype=np.float32) if x.dtype == np.uint8 else np.array(x, order="C")
        )

    def __repr__(self) -> str:
        return "ToArray()"


class CenterCrop:
    """Crop the center as `torchvision.transforms.CenterCrop`; a smaller image is first padded with zeros.

    Args:
      size: height and width, or one number for both.

    >>> import numpy as np
    >>> from jaxpar.data import transforms
    >>> transforms.CenterCrop(24)(np.zeros((32, 32, 3), np.uint8)).shape
    (24, 24, 3)
    """

    def __init__(self, size: Count | Sequence[Count]):
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
