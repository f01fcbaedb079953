"""RandomHorizontalFlip: mirror an image at random."""

from __future__ import annotations

import numpy as np

from ...random import Generator
from ._draws import Draws
from ._image import Image, array


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
