"""Layout: images that the written file takes as [N, H, W, C], turned once, before the first line of its call.

Every line behind means torch's axes, so no other one changes. The layers compute with their channels last,
and XLA takes out the transposes between.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch

from .._sides.task import Layout
from .reading.building import Inexpressible
from .reading.scope import defined_by_user, definition

AXES = 4


def is_image(x: Any) -> bool:
    return getattr(x, "ndim", 0) == AXES and (x.is_floating_point() if isinstance(x, torch.Tensor) else True)


def _images_last(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, 1, -1) if x.ndim == AXES and x.dtype.kind == "f" else x


SAME = Layout()
IMAGES_LAST = Layout(inputs=_images_last, channels_first=True)
"""Images are given to the file with their channels last; outputs have torch's axes."""
LAST = "images come as [N, H, W, C] and are turned once; outputs, and the axes in the file, are torch's"


def turned(net: torch.nn.Module, inputs: Sequence[Any]) -> Mapping[ast.stmt, tuple[str, ...]]:
    """The definition of a module's call, and the names of the images that it is given.

    Raises:
      Inexpressible: there are none, or the call is not the module's own.
    """
    forward = inspect.unwrap(type(net).forward)
    own = isinstance(forward, FunctionType) and defined_by_user(type(net))
    shared = any(each is not net and type(each).forward is type(net).forward for each in net.modules())
    if not own or shared or "forward" not in vars(type(net)):
        said = "no forward of its own" if not shared else "a forward that a part of it has as well"
        raise Inexpressible(
            f"channels_last: {type(net).__name__} has {said}; put it into a module that has one"
        )
    given = inspect.signature(forward).bind(net, *inputs).arguments
    names = tuple(name for name, value in given.items() if is_image(value))
    if not names:
        raise Inexpressible("channels_last: no input has four axes")
    return {definition(forward)[1]: names}
