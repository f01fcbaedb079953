"""torchvision without its compiled operators, which do not load beside torch's build for CPUs.

Its models need them only to be defined: detection alone computes with them.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
)
_library = torch.library.Library("torchvision", "FRAGMENT")


@functools.cache
def torchvision() -> ModuleType:
    """The package, with everything but its operators."""
    for operator in OPERATORS:
        if not hasattr(torch.ops.torchvision, operator.partition("(")[0]):
            _library.define(operator)
    own = torch.library.register_fake
    torch.library.register_fake = _tolerant(own)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that images cannot be read
            import torchvision
    finally:
        torch.library.register_fake = own
    return torchvision


def _tolerant(register: Callable[..., Any]) -> Callable[..., Any]:
    """`register_fake` that leaves out operators which are not there."""

    def decorator(operator: Any, *args: Any, **kwargs: Any) -> Any:
        def given(function: Callable[..., Any]) -> Callable[..., Any]:
            try:
                return register(operator, *args, **kwargs)(function)
            except RuntimeError:
                return function

        return given

    return decorator
