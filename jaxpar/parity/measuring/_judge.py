"""judge: decide which differences are differences in meaning. docs/comparison.md derives the bounds.

torch counterpart: the tolerances of `torch.testing.assert_close`. A fixed tolerance fails a healthy float32
matmul of 256 columns and passes a wrong epsilon. So float64 is compared with float64 under a bound far above
its rounding, and float32 with the reference's own loss in float32.
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._distance import category, distance
from ._measure import Difference, Kind


class Level(enum.Enum):
    """The question that a comparison answers.

    Attributes:
      SEMANTIC: do both compute the same function? Both sides in float64, under a relative bound.
      NUMERIC: is the candidate as exact as the reference? Both in a lower precision, against a float64
        oracle.
      TRAJECTORY: is every training step as exact as the reference's?
      AS_IT_RUNS: the numeric question in the dtypes and precision that both models use outside a
        comparison: how many digits do these cost?

    >>> from jaxpar.parity import Level
    >>> Level.parse("as-it-runs").value
    'as it runs'
    """

    SEMANTIC = "semantic"
    NUMERIC = "numeric"
    TRAJECTORY = "trajectory"
    AS_IT_RUNS = "as it runs"

    @classmethod
    def parse(cls, level: str | Level) -> Level:
        """Return the level of that name, or raise ValueError."""
        try:
            return cls(level if isinstance(level, Level) else re.sub("[-_]", " ", str(level).lower()))
        except ValueError:
            names = ", ".join(member.value for member in cls)
            raise ValueError(f"compare: level={level!r} is none of {names}.") from None


class Outcome(enum.Enum):
    """The verdict on one tensor.

    >>> from jaxpar.parity import Outcome
    >>> [outcome.value for outcome in Outcome]
    ['same', 'worse', 'constants', 'noise', 'different']
    """

    SAME = "same"
    WORSE = "worse"
    """Within the bound, but the error is `Policy.warn` times the reference's own or more."""
    CONSTANTS = "constants"
    """The difference is explained by constants that were rounded to float32 before the comparison."""
    NOISE = "noise"
    """No verdict: the gradient consists of rounding only."""
    DIFFERENT = "different"


@dataclasses.dataclass(frozen=True)
class Policy:
    """The bounds of the verdicts. docs/comparison.md derives the defaults.

    Attributes:
      level: the level whose bounds apply.
      relative: semantic: the bound of max|c - r| / max|r|. Healthy pairs are near 3e-15.
      k_rms, k_max: numeric and trajectory: the bounds of the ratios. Healthy tensors reach 3.14 and 3.51.
      half_k_rms, half_k_max: the same for dtypes with 12 bits of precision or fewer (bfloat16, float16,
      TF32).
      luck: the probability that the reference of a small tensor is exact by chance: both k are multiplied by
        luck^(-1/n) for n elements, 1.01 for a thousand, 2.5 for ten.
      k_most: the upper limit of both k after that.
      warn: ratios from here on are WORSE.
      growth: the factor by which a ratio may exceed its recorded one; ratios below 1 count as 1.
      noise_units: numeric: how many units of the largest gradient a noise gradient may be off.
      overrides: pairs (shell pattern of names, relative) for tensors that depend on the dtype by definition.
        The first match applies, at the semantic level only.

    >>> from jaxpar.parity import Policy
    >>> Policy(overrides=(("*.running_var", 1e-6),)).relative
    1e-10
    """

    level: Level = Level.SEMANTIC
    relative: float = 1e-10
    k_rms: float = 4.0
    k_max: float = 6.0
    half_k_rms: float = 4.0
    half_k_max: float = 10.0
    luck: float = 1e-4
    k_most: float = 30.0
    warn: float = 2.0
    growth: float = 2.0
    noise_units: float = 1024.0
    overrides: tuple[tuple[str, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class Judged:
    """A difference and its verdict.

    Attributes:
      difference: the measurements.
      outcome: the verdict.
      value: the number that decided.
      limit: the bound of `value`; 0 where equality is required.
      reason: the verdict as a sentence; "" for most SAME tensors.
    """

    difference: Difference
    outcome: Outcome
    value: float
    limit: float
    reason: str = ""

    @property
    def severity(self) -> float:
        """The value as a multiple of the limit: above 1 is different. Noise has -1, to sort last."""
        if self.outcome is Outcome.NOISE:
            return -1.0
        if self.value == 0:
            return 0.0
        return self.value / self.limit if self.limit and not math.isnan(self.value) else math.inf


Key = tuple[Kind, str, int]


def key_of(difference: Difference) -> Key:
    return difference.kind, difference.name, difference.step


def judge(
    differences: Iterable[Difference],
    policy: Policy,
    noise: Mapping[str, str] | None = None,
    recorded: Mapping[Key, float] | None = None,
) -> tuple[Judged, ...]:
    """Return every difference with its outcome, in the same order.

    Args:
      differences: the results of `measure`, for all kinds and steps of one comparison.
      policy: the bounds and the level.
      noise: the parameters whose gradient is noise, with the reasons, as `noise()` returns them. Their
        gradients are judged relative to the step's largest gradient, and their updates and weights are not
        judged, unless both sides have bit-identical gradients. Outputs, losses, input gradients, state and
        faults are never excused.
      recorded: the larger ratio of earlier runs; growth beyond `policy.growth` is DIFFERENT.

    Raises:
      ValueError: the level needs ratios, but the differences were measured without an oracle.

    >>> import numpy as np
    >>> from jaxpar.parity.measuring import Kind, Policy, judge, measure
    >>> differences = measure({"y": np.ones(3)}, {"y": np.full(3, 1.01)}, Kind.OUTPUT)
    >>> judge(differences, Policy())[0].outcome.value
    'different'
    """
    rows = list(differences)
    largest: dict[tuple[Kind, int], float] = {}
    for d in rows:
        largest[d.kind, d.step] = max(largest.get((d.kind, d.step), 0.0), d.magnitude)
    # Bit-identical gradients move both sides' parameters alike, so the updates can be judged although the
    # gradients are noise.
    equal = _equal_gradients(rows)
    excused = {name: why for name, why in (noise or {}).items() if name not in equal}
    recorded_ratios = recorded or {}
    return tuple(
        _judged(
            d,
            policy,
            excused.get(d.name),
            largest[d.kind, d.step],
            recorded_ratios.get(key_of(d)),
        )
        for d in rows
    )


def _equal_gradients(differences: Iterable[Difference]) -> set[str]:
    gradients = [d for d in differences if d.kind is Kind.GRADIENT]
    return {d.name for d in gradients} - {d.name for d in gradients if d.fault is not None or d.max_abs > 0}


def _judged(d: Difference, policy: Policy, why: str | None, largest: float, recorded: float | None) -> Judged:
    if d.fault is not None:
        return Judged(d, Outcome.DIFFERENT, math.inf, 0.0, d.fault)
    # After the faults: noise excuses the size of a difference, never a missing tensor or a misplaced NaN.
    if why is not None and d.kind in (Kind.UPDATE, Kind.WEIGHT):
        return Judged(d, Outcome.NOISE, d.relative, math.inf, why)
    if why is not None and d.kind is Kind.GRADIENT:
        return _beside_the_largest(d, policy, largest, why, Outcome.NOISE)
    # The relative difference from 0 is infinite, even for a rounding.
    if d.magnitude == 0 < d.max_abs:
        return _beside_the_largest(d, policy, largest, "it is exactly 0 in the reference", Outcome.SAME)
    if policy.level is Level.SEMANTIC:
        return _semantic(d, policy)
    return _numeric(d, policy, recorded)


def _beside_the_largest(d: Difference, policy: Policy, largest: float, why: str, within: Outcome) -> Judged:
    """Judge a tensor whose magnitude is 0 or noise relative to the largest of its kind and step."""
    limit = policy.relative
    if policy.level is not Level.SEMANTIC and d.unit is not None:
        limit = policy.noise_units * d.unit
    value = d.max_abs / largest if largest > 0 else math.inf * d.max_abs if d.max_abs else 0.0
    if value <= limit:
        return Judged(d, within, value, limit, why)
    reason = (
        f"{why}, but the candidate is {d.max_abs:.3g} away: {value:.3g} of the largest {d.kind.value}, "
        f"above {limit:.3g}"
    )
    return Judged(d, Outcome.DIFFERENT, value, limit, reason)


def _semantic(d: Difference, policy: Policy) -> Judged:
    fits = (relative for pattern, relative in policy.overrides if fnmatch.fnmatchcase(d.name, pattern))
    limit = next(fits, policy.relative)
    if d.relative <= limit:
        return Judged(d, Outcome.SAME, d.relative, limit)
    return Judged(d, Outcome.DIFFERENT, d.relative, limit, f"relative {d.relative:.3g} is above {limit:.3g}")


def _numeric(d: Difference, policy: Policy, recorded: float | None) -> Judged:
    if d.ratio_rms is None or d.ratio_max is None:
        if d.max_abs == 0 and d.ulp is None:  # integers, or gradients that do not exist
            return Judged(d, Outcome.SAME, 0.0, 0.0)
        raise ValueError(
            f"judge: {d.kind.value} {d.name} has no ratios, which level {policy.level.value} needs: "
            "call measure with an oracle."
        )
    ratios = {"RMS": d.ratio_rms, "maximum": d.ratio_max}
    limits = _limits(d, policy)
    which = max(ratios, key=lambda name: ratios[name] / limits[name])
    value, limit = ratios[which], limits[which]
    # Not `value > limit`, which is False for NaN.
    if not value <= limit:
        reason = f"its error is {value:.3g} x the reference's own ({which}), above {limit:.3g}"
        return Judged(d, Outcome.DIFFERENT, value, limit, reason)
    worst = max(ratios.values())
    # A ratio below 1 is partly luck: as a baseline it would fail a healthy change of compiler.
    bound = math.inf if recorded is None else policy.growth * max(recorded, 1.0)
    if worst > bound:
        reason = f"its ratio has grown from {recorded:.3g} to {worst:.3g}, more than {policy.growth:g} x"
        return Judged(d, Outcome.DIFFERENT, worst, bound, reason)
    if worst >= policy.warn:
        return Judged(d, Outcome.WORSE, value, limit, f"its error is {worst:.3g} x the reference's own")
    return Judged(d, Outcome.SAME, value, limit)


def _limits(d: Difference, policy: Policy) -> dict[str, float]:
    half = d.unit is not None and d.unit > 2.0**-12
    rms, most = (policy.half_k_rms, policy.half_k_max) if half else (policy.k_rms, policy.k_max)
    # n elements are n samples of the reference's error. All of them are t times too small by luck with a
    # probability of about t^-n, and then the ratio is t times too large.
    luck = policy.luck ** (-1 / max(d.size, 1))
    return {"RMS": min(rms * luck, policy.k_most), "maximum": min(most * luck, policy.k_most)}


# The bias before a BatchNorm and the key bias of attention have gradient 0; the computed value is the
# rounding of a sum. Adam divides it by its own size, so these parameters take random steps of the learning
# rate.
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
