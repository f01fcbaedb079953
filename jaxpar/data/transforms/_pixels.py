"""Pixels as numbers: ToArray and Normalize."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._image import Image, array


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
