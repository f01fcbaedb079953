"""judge: which differences are a difference in meaning. docs/comparison.md says where the bounds come from.

torch counterpart: the tolerances of `torch.testing.assert_close`. A fixed tolerance is wrong in both
directions: it fails a healthy float32 matmul of 256 columns and passes a wrong epsilon. So float64 is held
against float64 with a bound far above its rounding, and float32 against what the reference itself loses in
float32. Cosine similarity, means and element-wise relative errors decide nothing: a constant added to every
pixel leaves a cosine of 0.9996.
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
import math
import re
from collections.abc import Iterable, Mapping

from ._measure import Difference, Kind


class Level(enum.Enum):
    """Which question is asked.

    Attributes:
      SEMANTIC: do both mean the same? Both sides in float64, held against a relative bound.
      NUMERIC: is the candidate as exact as the reference? Both in their own type, held against an
        oracle in float64.
      TRAJECTORY: is one step of training as exact as the reference's, at every step?
      AS_IT_RUNS: the numeric question with the types and the precision that both models have outside of a
        comparison: what do they cost?
    """

    SEMANTIC = "semantic"
    NUMERIC = "numeric"
    TRAJECTORY = "trajectory"
    AS_IT_RUNS = "as it runs"

    @classmethod
    def parse(cls, level: str | Level) -> Level:
        """The level of that name.

        Raises:
          ValueError: there is none.
        """
        try:
            return cls(level if isinstance(level, Level) else re.sub("[-_]", " ", str(level).lower()))
        except ValueError:
            names = ", ".join(member.value for member in cls)
            raise ValueError(f"compare: level={level!r} is none of {names}.") from None


class Outcome(enum.Enum):
    """The verdict on one tensor."""

    SAME = "same"
    WORSE = "worse"
    """Within the bound, but the error is `Policy.warn` times the reference's own or more."""
    CONSTANTS = "constants"
    """Within what float32 constants explain, which were rounded before the comparison."""
    NOISE = "noise"
    """No verdict: the gradient is nothing but rounding."""
    DIFFERENT = "different"


@dataclasses.dataclass(frozen=True)
class Policy:
    """The bounds. docs/comparison.md says where the defaults come from.

    Attributes:
      level: the one whose bounds are used.
      relative: semantic: max|c - r| / max|r| may be this. Healthy pairs are near 3e-15.
      k_rms, k_max: numeric and trajectory: the ratios may be this. Healthy tensors reach 3.14 and 3.51.
      half_k_rms, half_k_max: the same for types with 12 digits or fewer (bfloat16, float16, TF32).
      luck: the probability that the reference of a small tensor is exact by chance: both k are multiplied by
        luck^(-1/n) for n elements, 1.01 for a thousand, 2.5 for ten.
      k_most: the most that both k may become.
      warn: a ratio from here on is WORSE.
      growth: the factor by which a ratio may exceed its recorded one; ratios below 1 count as 1.
      noise_units: numeric: how many units of the largest gradient a noise gradient may be off.
      overrides: pairs (shell pattern of names, relative) for tensors that depend on the dtype by definition;
        the first that fits counts, at the semantic level only.
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
    """A difference and the verdict on it.

    Attributes:
      difference: what was measured.
      outcome: the verdict.
      value: the number that decided.
      limit: its bound; 0 where equality was due.
      reason: the verdict as a sentence, for all but plain SAME.
    """

    difference: Difference
    outcome: Outcome
    value: float
    limit: float
    reason: str = ""

    @property
    def severity(self) -> float:
        """How many times the limit: above 1 is different. It orders rows of all kinds; noise comes last."""
        if self.outcome is Outcome.NOISE:
            return -1.0
        if self.value == 0:
            return 0.0
        return self.value / self.limit if self.limit and not math.isnan(self.value) else math.inf


Key = tuple[Kind, str, int]
"""Kind, name and step of a difference."""


def judge(
    differences: Iterable[Difference],
    policy: Policy,
    noise: Mapping[str, str] | None = None,
    recorded: Mapping[Key, float] | None = None,
) -> tuple[Judged, ...]:
    """Every difference with its outcome, in the same order.

    Args:
      differences: what `measure` found, all kinds and steps that belong together.
      policy: the bounds and the level.
      noise: parameters whose gradient is noise, each with the reason: what `noise()` returns. Their gradients
        are held against the largest gradient of the step, their updates and weights against nothing; unless
        both sides have the very same gradient, as where it is exactly 0 on both. Outputs, losses, input
        gradients, state and faults are never excused.
      recorded: the larger ratio of earlier runs; growth beyond `policy.growth` is DIFFERENT.

    Raises:
      ValueError: the level needs ratios, and the differences have none because they were measured
        without an oracle.
    """
    rows = list(differences)
    largest: dict[tuple[Kind, int], float] = {}
    for d in rows:
        largest[d.kind, d.step] = max(largest.get((d.kind, d.step), 0.0), d.magnitude)
    equal = _equal_gradients(rows)
    excused = {name: why for name, why in (noise or {}).items() if name not in equal}
    recorded_ratios = recorded or {}
    return tuple(
        _judged(
            d,
            policy,
            excused.get(d.name),
            largest[d.kind, d.step],
            recorded_ratios.get((d.kind, d.name, d.step)),
        )
        for d in rows
    )


def _equal_gradients(differences: Iterable[Difference]) -> set[str]:
    """The parameters whose gradients are the same on both sides at every step, bit for bit."""
    gradients = [d for d in differences if d.kind is Kind.GRADIENT]
    return {d.name for d in gradients} - {d.name for d in gradients if d.fault is not None or d.max_abs > 0}


def _judged(d: Difference, policy: Policy, why: str | None, largest: float, recorded: float | None) -> Judged:
    if d.fault is not None:
        return Judged(d, Outcome.DIFFERENT, math.inf, 0.0, d.fault)
    if why is not None and d.kind in (Kind.UPDATE, Kind.WEIGHT):
        return Judged(d, Outcome.NOISE, d.relative, math.inf, why)
    if why is not None and d.kind is Kind.GRADIENT:
        return _beside_the_largest(d, policy, largest, why, Outcome.NOISE)
    if d.magnitude == 0 < d.max_abs:
        return _beside_the_largest(d, policy, largest, "it is exactly 0 in the reference", Outcome.SAME)
    if policy.level is Level.SEMANTIC:
        return _semantic(d, policy)
    return _numeric(d, policy, recorded)


def _beside_the_largest(d: Difference, policy: Policy, largest: float, why: str, within: Outcome) -> Judged:
    """A tensor without a size of its own is held against the largest of its kind and step."""
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
    if not value <= limit:
        reason = f"its error is {value:.3g} x the reference's own ({which}), above {limit:.3g}"
        return Judged(d, Outcome.DIFFERENT, value, limit, reason)
    worst = max(ratios.values())
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
