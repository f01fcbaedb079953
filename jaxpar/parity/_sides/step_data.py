"""Task: what both sides are asked to do. Observation: what they show. Neither knows a framework's modules.

Layout is where the channels are. torch has them at axis 1, Flax at the end; a token has none.

Where the user gives no loss, it is a fixed random projection of everything the model returns. Every element
of every output gets a factor of its own, so no error can cancel: a plain sum would hide a permutation, and
the gradient of a mean after BatchNorm is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..._typing import Shape
from .call_arguments import Call

OWN = "own"
"""Instead of an element type: each array has its own."""

Named = dict[str, np.ndarray]
"""Arrays by name: a leaf's path, or a place in the outputs."""

Loss = tuple[Callable[..., Any], Callable[..., Any]]
"""(torch's, JAX's), both called with (outputs, *targets)."""

Optimizer = tuple[Callable[..., Any], Any]
"""(parameters -> torch optimizer, optax transformation)."""


Move = Callable[[np.ndarray], np.ndarray]


def same(x: np.ndarray) -> np.ndarray:
    return x


def to_channels_last(x: np.ndarray) -> np.ndarray:
    """[N, C, *S] to [N, *S, C]; integers and arrays of fewer than three axes stay as they are."""
    return np.moveaxis(x, 1, -1) if _has_channels(x) else x


def to_channels_first(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, -1, 1) if _has_channels(x) else x


def _has_channels(x: np.ndarray) -> bool:
    return x.ndim > 2 and x.dtype.kind not in "biu"


NAMES: dict[str, tuple[Move, Move]] = {
    "same": (same, same),
    "channels_last": (to_channels_last, to_channels_first),
}


@dataclass(frozen=True)
class Layout:
    """How arrays travel: `inputs` (and targets) to Flax, `outputs` to Flax and back.

    All are functions of one NumPy array that only permute its elements. `channels_first` says whether the
    Flax model computes in torch's axes; if left out, it does where `inputs` stay as they are.
    """

    inputs: Move = same
    outputs: Move = same
    outputs_back: Move = same
    channels_first: bool | None = None

    @property
    def in_torchs_axes(self) -> bool:
        return self.inputs is same if self.channels_first is None else self.channels_first

    @classmethod
    def parse(cls, layout: str | tuple[str, str] | Layout) -> Layout:
        """From "same", "channels_last", a pair of them for inputs and outputs, or a Layout."""
        if isinstance(layout, Layout):
            return layout
        pair = (layout, layout) if isinstance(layout, str) else tuple(layout)
        if len(pair) != 2 or not set(pair) <= set(NAMES):
            raise ValueError(
                f"layout is {layout!r}; it is one of {', '.join(map(repr, NAMES))}, a pair of them "
                "(inputs, outputs), or a parity.Layout."
            )
        inputs, outputs = pair
        return cls(NAMES[inputs][0], *NAMES[outputs])


IMAGES = 4
"""Axes of images. Arrays of fewer may be tokens, whose channels are last in torch too."""


@contextmanager
def noting_layout(layout: Layout, call: Call) -> Iterator[None]:
    """Adds to an error of the Flax model what it is likely to come from, if it was given torch's images."""
    try:
        yield
    except Exception as error:
        images = [x.shape for x in call.arrays.values() if np.ndim(x) >= IMAGES and _has_channels(x)]
        if layout.inputs is same and images:
            error.add_note(
                f"jaxpar.parity: the Flax model was given {images[0]}, as torch has it. If its channels are "
                'last, pass layout="channels_last".'
            )
        raise


@dataclass(frozen=True)
class Task:
    """What is computed in a step, the same for both sides; `compare` explains its arguments."""

    training: bool = True
    loss: Loss | None = None
    optimizer: Optimizer | None = None
    replicas: int = 1
    layout: Layout = field(default_factory=Layout)
    seed: int = 0
    outputs: Mapping[str, str] | None = None
    """Of the outputs that are compared torch's names, with Flax's; None are all."""
    channels_first: bool = False
    """Whether the Flax model is given arrays as torch has them, so that dropout's masks fit as they are."""


@dataclass(frozen=True)
class Batch:
    """The rows of one step.

    Attributes:
      torch_call, flax_call: torch's call and Flax's, each in its own layout.
      targets: in torch's layout.
      common: torch's floating arrays that Flax is given too, by place: Flax's place, and the way there.
    """

    torch_call: Call = field(default_factory=Call)
    flax_call: Call = field(default_factory=Call)
    targets: tuple[np.ndarray, ...] = ()
    common: Mapping[str, tuple[str, Move]] = field(default_factory=dict)


@dataclass(frozen=True)
class Observation:
    """What one step shows. `state` and `weights` are those after it."""

    outputs: Named
    loss: Named
    """Empty where the loss is only the projection, which says nothing that the outputs do not say."""
    input_gradients: Named
    gradients: Named
    state: Named
    weights: Named
    masks: tuple[np.ndarray, ...] = ()
    """Dropout's factors (0 or 1/(1-p)) in the order of the calls, in torch's layout."""


def real_parts(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the projection is of: floating outputs, and both parts of complex ones. Of tensors or arrays."""
    parts: dict[str, Any] = {}
    for name, x in outputs.items():
        if "complex" in str(x.dtype):
            parts |= {name: x.real, f"{name}, imaginary": x.imag}
        elif "float" in str(x.dtype):
            parts[name] = x
    return parts


def factors(shapes: Mapping[str, Shape], seed: int) -> dict[str, np.ndarray]:
    """The projection's float64 factors, of a size that keeps the loss near 1; the same on both sides.

    Args:
      shapes: of `real_parts`, in torch's layout.
    """
    # A stream of its own: inputs drawn from RandomState(seed) would be projected on themselves, and the
    # input gradient of a norm is nothing but rounding then.
    random = np.random.RandomState([seed % 2**32, *b"projection"])
    return {
        name: random.standard_normal(shape) / max(1, math.prod(shape)) ** 0.5
        for name, shape in sorted(shapes.items())  # one order, whatever the containers have
    }


def in_type_of(dtype: str, projection: np.ndarray) -> np.ndarray:
    """The factors as a side of this type begins with them: float32 where each array has its own type."""
    return projection.astype(np.float32) if dtype == OWN else projection
