"""noise: gradients that are nothing but rounding, which parity must not be asked of; and elements at a kink.

torch has no such rule. The bias before a BatchNorm and the key bias of attention have the gradient 0; what is
computed is the rounding of a sum, another one in every framework. Adam divides it by its own size, so such
parameters walk at random by the learning rate in every step, in either framework.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._distance import category, distance

NOISE = 0.1
"""The relative error of float32 above which a gradient is noise: not one digit is right."""
ROUNDING = 2.0**-44
"""A float64 gradient this small beside the model's largest is the rounding of a sum (512 units)."""


def noise(gradient64: Mapping[str, Any], gradient32: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The parameters whose gradient is noise in the reference, each with the reason, as a sentence.

    Args:
      gradient64: the reference's gradients from a run in float64.
      gradient32: the same from a run in float32, if there was one.

    Three cases; g64 and g32 are one parameter's gradients:

    - rms(g32 - g64) > 0.1·rms(g64): float32 has not one digit of it. This is the rule; it tells a small
      gradient, of which float32 has seven digits, from no gradient.
    - g64 is exactly 0 everywhere. The candidate may compute the same 0 as the rounding of a sum.
    - without a float32 run: max|g64| <= 2^-44 of the largest gradient of the model.

    Noise excuses no gradient of any size: `judge` holds it against the largest gradient of the model instead
    of against itself, and leaves out the parameter's updates and weights unless the candidate has the very
    same gradient.
    """
    reasons = {}
    sizes = {name: _size(g) for name, g in gradient64.items() if _is_there(g)}
    largest = max((top for _, top in sizes.values()), default=0.0)
    for name, (rms, top) in sizes.items():
        single = None if gradient32 is None else gradient32.get(name)
        if top == 0:
            reasons[name] = "its gradient is exactly 0 in the reference"
        elif _is_there(single):
            error = distance(np.asarray(single), np.asarray(gradient64[name])).rms
            if error > NOISE * rms:
                reasons[name] = (
                    f"its gradient is noise in the reference: RMS {rms:.2g} in float64, "
                    f"and float32 is {error:.2g} away"
                )
        elif top <= ROUNDING * largest:
            reasons[name] = f"its gradient is rounding: {top:.2g} at most, beside {largest:.2g} in the model"
    return reasons


def noise_elements(gradient64: Mapping[str, Any], gradient32: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Where a gradient is noise in a part of the tensor: |g32 - g64| > 0.1·|g64|, element by element.

    For `measure(left_out=...)` of updates and weights, as of the key third of a fused query-key-value bias.
    Only tensors with such elements that are not noise as a whole are in the result.
    """
    noisy = noise(gradient64, gradient32)
    masks = {}
    for name, g in gradient64.items():
        if not _is_there(g) or name in noisy or not _is_there(gradient32.get(name)):
            continue
        double, single = np.asarray(g), np.asarray(gradient32[name])
        mask = np.abs(single.astype(double.dtype) - double) > NOISE * np.abs(double)
        if mask.any():
            masks[name] = mask
    return masks


def kinks(array: npt.ArrayLike, points: Sequence[float] = (0.0,), width: float = 1e-6) -> int:
    """How many elements lie within `width` of a point where the derivative jumps, as of a ReLU at 0.

    Rounding may put such an element on the other side, and its gradient with it.
    """
    with np.errstate(invalid="ignore"):  # NaN of a bfloat16
        x = np.asarray(array).astype(np.float64, copy=False)
    near = [np.abs(x - point) <= width for point in points]
    return int(np.logical_or.reduce(near).sum()) if near else 0


def _is_there(gradient: npt.ArrayLike | None) -> bool:
    """Neither None nor JAX's float0."""
    return gradient is not None and category(np.asarray(gradient).dtype) in ("float", "complex")


def _size(gradient: npt.ArrayLike) -> tuple[float, float]:
    """RMS and maximum."""
    g = np.asarray(gradient)
    return distance(g, g, g).oracle_size
