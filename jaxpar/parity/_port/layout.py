"""Layout: the axes of the images in a written file with `channels_last=True`.

Either every line is written for [N, H, W, C]; or, if some line cannot be, the inputs are transposed once,
before the first line of the call, and all later lines use torch's axes.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch

from .._sides.step_data import Layout, to_channels_first, to_channels_last
from .._sides.torch_side import named_leaves
from .images.axes import Unsafe
from .images.flow import AXES, Flow
from .images.plan import plan
from .reading.building import Inexpressible
from .reading.scope import defined_by_user, definition
from .translating.needs import Needs


def is_image(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return x.ndim == AXES and x.is_floating_point()
    return isinstance(x, np.ndarray) and x.ndim == AXES and x.dtype.kind == "f"


def _images_last(x: np.ndarray) -> np.ndarray:
    return to_channels_last(x) if is_image(x) else x


def _images_first(x: np.ndarray) -> np.ndarray:
    return to_channels_first(x) if is_image(x) else x


SAME = Layout()
IMAGES_LAST = Layout(inputs=_images_last, channels_first=True)
"""Inputs have their channels last; outputs have torch's axes."""
EVERYWHERE = Layout(inputs=_images_last, outputs=_images_last, outputs_back=_images_first)
"""Inputs and outputs have their channels last."""
TURNED = "images come as [N, H, W, C] and are turned once; outputs, and the axes in the file, are torch's"
LAST = "images are [N, H, W, C]"


def images_last(
    needs: Needs,
    flow: Flow,
    nets: Sequence[torch.nn.Module],
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Layout:
    if not any(map(is_image, named_leaves(inputs).values())):
        raise Inexpressible("channels_last: no input has four axes")
    try:
        # The proof's Layout transposes positional arguments only.
        if any(map(is_image, named_leaves(kwargs).values())):
            raise Unsafe("an image is a keyword argument")
        needs.images = plan(flow, nets)
    except Unsafe as reason:
        note = f"the file is not written for them because of {reason}"
        try:
            needs.turned.update(turned(nets[0], inputs))
        except Inexpressible as error:
            raise Inexpressible(f"{error}; {note}") from error
        needs.note(f"{TURNED}: {note}")
        return IMAGES_LAST
    for note in (LAST, *needs.images.notes):
        needs.note(note)
    return EVERYWHERE


def turned(net: torch.nn.Module, inputs: Sequence[Any]) -> Mapping[ast.stmt, tuple[str, ...]]:
    """Return the definition of a module's `forward`, and the names of its arguments that are images."""
    forward = inspect.unwrap(type(net).forward)
    has_forward = isinstance(forward, FunctionType) and defined_by_user(type(net))
    # The transpose is written into the class, so it would also run in a submodule of the same class.
    shared = any(module is not net and type(module).forward is type(net).forward for module in net.modules())
    if not has_forward or shared or "forward" not in vars(type(net)):
        reason = "no forward of its own" if not shared else "a forward that a part of it has as well"
        raise Inexpressible(
            f"channels_last: {type(net).__name__} has {reason}; put it into a module that has one"
        )
    arguments = inspect.signature(forward).bind(net, *inputs).arguments
    names = tuple(name for name, value in arguments.items() if is_image(value))
    if len(names) < sum(map(is_image, named_leaves(inputs).values())):
        raise Inexpressible("channels_last: an image is in a list")
    return {definition(forward)[1]: names}
