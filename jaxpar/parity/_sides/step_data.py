"""Framework-independent data of a compared step: Task and Batch go in, an Observation comes out.

Without a user-defined loss, the loss is a fixed random projection of all outputs. Every element of every
output has a different factor, so errors cannot cancel: a plain sum would hide a permutation, and the gradient
of a mean after BatchNorm is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from ..._typing import Shape
from .call_arguments import Call

OWN = "own"  # Used in place of an element type: every array keeps its own type

Named = dict[str, np.ndarray]  # Arrays by name: a leaf's path, or a path in the outputs

Loss = tuple[Callable[..., Any], Callable[..., Any]]  # torch's and JAX's, of (outputs, *targets)
Optimizer = tuple[Callable[..., Any], Any]  # (parameters -> torch optimizer, optax transformation)


Move = Callable[[np.ndarray], np.ndarray]


def same(x: np.ndarray) -> np.ndarray:
    return x


def to_channels_last(x: np.ndarray, axes: int = 3) -> np.ndarray:
    """Permute (N, C, *S) to (N, *S, C); integers and arrays with fewer than `axes` axes are unchanged."""
    return np.moveaxis(x, 1, -1) if _has_channels(x) and x.ndim >= axes else x


def to_channels_first(x: np.ndarray, axes: int = 3) -> np.ndarray:
    return np.moveaxis(x, -1, 1) if _has_channels(x) and x.ndim >= axes else x


def _has_channels(x: np.ndarray) -> bool:
    # Integers are tokens or masks, and (N, C) is the same in both layouts.
    return x.ndim > 2 and x.dtype.kind not in "biu"


NAMES: dict[str, tuple[Move, Move]] = {
    "same": (same, same),
    "channels_last": (to_channels_last, to_channels_first),
}


@dataclass(frozen=True)
class Layout:
    """Axis permutations between torch's and Flax's arrays.

    All three are functions of one NumPy array that only permute its elements.

    Attributes:
      inputs: torch's inputs and targets to Flax's.
      outputs: torch's outputs to Flax's.
      outputs_back: the inverse of `outputs`.
      channels_first: whether the Flax model computes in torch's axes; by default, whether `inputs` is the
        identity.

    >>> import numpy as np
    >>> from jaxpar.parity import Layout
    >>> Layout.parse("channels_last").inputs(np.zeros((2, 3, 8, 9))).shape
    (2, 8, 9, 3)
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
        """Accepts "same", "channels_last", a pair of these (inputs, outputs), or a Layout."""
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

    def of_outputs(self, inputs: Iterable[np.ndarray]) -> Layout:
        """Return the layout for a model of these inputs, which leaves outputs with fewer axes as they are.

        A model of images returns a sequence or a map as [N, length, width] in both frameworks.
        """
        if self.outputs is not to_channels_last:
            return self
        axes = min((x.ndim for x in inputs if _has_channels(x)), default=3)
        first, last = partial(to_channels_first, axes=axes), partial(to_channels_last, axes=axes)
        return replace(self, outputs=last, outputs_back=first)


IMAGES = 4  # axes of an image; fewer may be a sequence's, whose channels are last in torch too


@contextmanager
def noting_layout(layout: Layout, call: Call) -> Iterator[None]:
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
    """The configuration of a step, equal for both sides; `compare` documents the options."""

    training: bool = True
    own_modes: bool = False  # whether submodules have modes of their own, which both sides keep
    loss: Loss | None = None
    optimizer: Optimizer | None = None
    replicas: int = 1
    layout: Layout = field(default_factory=Layout)
    seed: int = 0
    outputs: Mapping[str, str] | None = None  # Flax's names by torch's; None compares all
    channels_first: bool = False  # of the Flax model's inputs: dropout masks need no permutation


@dataclass(frozen=True)
class Batch:
    """The data of one step; the calls are in their framework's layout, `targets` in torch's.

    `common` has, for each floating array of torch's call that Flax's call has too, the name in Flax's call
    and the permutation to Flax's layout.
    """

    torch_call: Call = field(default_factory=Call)
    flax_call: Call = field(default_factory=Call)
    targets: tuple[np.ndarray, ...] = ()
    common: Mapping[str, tuple[str, Move]] = field(default_factory=dict)


def targets_of(targets: Any, step: int, as_array: Callable[[Any, str], np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return the arrays of a step's targets: one or several, or a function of the step that returns them."""
    of_step = targets(step) if callable(targets) else targets
    several = of_step if isinstance(of_step, tuple | list) else (of_step,)
    return tuple(as_array(x, f"targets[{i}]") for i, x in enumerate(several))


@dataclass(frozen=True)
class Observation:
    """The arrays of one step, in Flax's layout; `state` and `weights` are the values after the step."""

    outputs: Named
    loss: Named  # empty for the default projection, which is a function of the compared outputs
    input_gradients: Named
    gradients: Named
    state: Named
    weights: Named
    masks: tuple[np.ndarray, ...] = ()  # dropout factors in the order of the calls, in torch's layout


PARTS = ("outputs", "loss", "input_gradients", "gradients", "state", "weights")  # of an Observation, in order


def real_parts(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return floating outputs, and both parts of complex ones."""
    parts: dict[str, Any] = {}
    for name, x in outputs.items():
        if "complex" in str(x.dtype):
            parts |= {name: x.real, f"{name}, imaginary": x.imag}
        elif "float" in str(x.dtype):
            parts[name] = x
    return parts


def factors(shapes: Mapping[str, Shape], seed: int) -> dict[str, np.ndarray]:
    """Return the projection's float64 factors, equal on both sides and scaled so that the loss is near 1."""
    # A separate stream: inputs drawn from RandomState(seed) would equal the factors, and the input gradient
    # of a normalization projected on its input is pure rounding.
    random = np.random.RandomState([seed % 2**32, *b"projection"])
    return {
        name: random.standard_normal(shape) / max(1, math.prod(shape)) ** 0.5
        for name, shape in sorted(shapes.items())  # independent of the containers' order
    }


def in_type_of(dtype: str, projection: np.ndarray) -> np.ndarray:
    return projection.astype(np.float32) if dtype == OWN else projection
