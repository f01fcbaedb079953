"""ToArray: torchvision's ToTensor, channels last."""

from __future__ import annotations

import numpy as np

from ._image import Image, array


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
