"""Compose: several transforms in sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


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
