"""Compose: one transform after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Compose:
    """Applies transforms, or any functions, in order.

    torch counterpart: `torchvision.transforms.Compose`.
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]):
        self.transforms = transforms

    def __call__(self, img: Any) -> Any:
        for transform in self.transforms:
            img = transform(img)
        return img

    def __repr__(self) -> str:
        return f"Compose({list(self.transforms)})"
