"""noise: find gradients that consist of rounding only, which cannot be compared; and elements at a kink.

The bias before a BatchNorm and the key bias of attention have gradient 0; the computed value is the rounding
of a sum. Adam divides it by its own size, so these parameters take random steps of the learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._distance import category, distance

NOISE = 0.1  # the relative error of float32 above which a gradient is noise: no digit is correct
ROUNDING = 2.0**-44  # a float64 gradient this small, relative to the largest, is a sum's rounding (512 units)


def noise(gradient64: Mapping[str, Any], gradient32: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the parameters whose gradient is noise in the reference, with the reason as a sentence.

    Args:
      gradient64: the reference's gradients from a run in float64.
      gradient32: the gradients from a run in float32, if available.

    Noise is a gradient with rms(g32 - g64) > 0.1·rms(g64), or that is exactly 0 everywhere; without a float32
    run, one with max|g64| <= 2^-44 of the model's largest gradient.

    >>> import numpy as np
    >>> from jaxpar.parity.measuring import noise
    >>> noise({"kernel": np.ones(3), "bias": np.zeros(3)})
    {'bias': 'its gradient is exactly 0 in the reference'}
    """
    reasons = {}
    sizes = {name: _size(g) for name, g in gradient64.items() if _is_there(g)}
    largest = max((top for _, top in sizes.values()), default=0.0)
    for name, (rms, top) in sizes.items():
        single = None if gradient32 is None else gradient32.get(name)
        # The candidate may compute an exact 0 as the rounding of a sum.
        if top == 0:
            reasons[name] = "its gradient is exactly 0 in the reference"
        elif _is_there(single):
            error = distance(np.asarray(single), np.asarray(gradient64[name])).rms
            # Relative to its own size: of a small gradient that is not zero, float32 still has seven digits.
            if error > NOISE * rms:
                reasons[name] = (
                    f"its gradient is noise in the reference: RMS {rms:.2g} in float64, "
                    f"and float32 is {error:.2g} away"
                )
        elif top <= ROUNDING * largest:
            reasons[name] = f"its gradient is rounding: {top:.2g} at most, beside {largest:.2g} in the model"
    return reasons


def noise_elements(gradient64: Mapping[str, Any], gradient32: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return masks of the elements whose gradient is noise: |g32 - g64| > 0.1·|g64|.

    For `measure(left_out=...)` of updates and weights; an example is the key third of a fused query-key-value
    bias. Contains only tensors that have such elements and are not noise as a whole.

    >>> import numpy as np
    >>> from jaxpar.parity.measuring import noise_elements
    >>> noise_elements({"bias": np.array([1.0, 1e-17])}, {"bias": np.array([1.0, 3e-9])})["bias"].tolist()
    [False, True]
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
    """Count the elements within `width` of a point where the derivative jumps, such as a ReLU's 0.

    Rounding may move such an element across the point, which changes its gradient.

    >>> from jaxpar.parity.measuring import kinks
    >>> kinks([0.0, 1e-9, 0.5])
    2
    """
    with np.errstate(invalid="ignore"):  # NaN of a bfloat16
        x = np.asarray(array).astype(np.float64, copy=False)
    near = [np.abs(x - point) <= width for point in points]
    return int(np.logical_or.reduce(near).sum()) if near else 0


def _is_there(gradient: npt.ArrayLike | None) -> bool:
    return gradient is not None and category(np.asarray(gradient).dtype) in ("float", "complex")


def _size(gradient: npt.ArrayLike) -> tuple[float, float]:
    g = np.asarray(gradient)
    return distance(g, g, g).oracle_size
