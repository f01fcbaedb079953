"""measure: compute how far two sides' tensors are apart, in one pass, without judging."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ._distance import Array, Distance, category, distance, integers, narrower, unit_roundoff

Number = int | float | complex | None
Arrays = Mapping[str, Any]  # array-likes by name: anything that NumPy accepts

SAMPLES = 2000  # points per call for the plot of error against magnitude


class Kind(enum.Enum):
    """The role of a tensor in a model.

    >>> from jaxpar.parity import Kind
    >>> Kind("input gradient").name
    'INPUT_GRADIENT'
    """

    OUTPUT = "output"
    LOSS = "loss"
    INPUT_GRADIENT = "input gradient"
    GRADIENT = "gradient"
    STATE = "state"
    UPDATE = "update"
    WEIGHT = "weight"


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of one tensor at one step: c is the candidate's, r the reference's, o the oracle's.

    Positions where both sides have the same NaN or infinity, and positions that were left out, count as equal
    and are excluded from the numbers, which are computed in float64 (complex128).

    Attributes:
      kind: the tensor's role.
      name: the tensor's path.
      step: the training step, from 1.
      shape: the reference's shape, or the candidate's if only that exists.
      dtype: the common type, or `candidate's / reference's`.
      max_abs: max|c - r|; infinite where nothing can be compared.
      max_rel: max(|c - r| / |r|), element by element. For the report only: one element near zero
        makes it large in a healthy tensor.
      relative: max|c - r| / max|r|, the semantic level's number. 0 if both are zero, infinite if only the
        reference is, and with a fault.
      rms: the root mean square of |c - r|.
      ulp: the largest number of representable steps between c and r, in the narrower of the two types;
        of a complex number's parts. None for integers and with a fault. For the report only.
      index: the index of the largest |c - r|; () for a scalar and with a fault.
      candidate, reference: the values at `index`; None for a fault without such an element.
      magnitude: max|r|.
      fault: a sentence on why the tensors cannot be compared, or are unequal where equality is required: a
        tensor on one side only, shapes, kinds of dtype, positions of NaN and infinity, integers. Else None.
      ratio_rms: rms(c - o) / max(rms(r - o), u·rms(o)), u the unit roundoff. None without an oracle, for
        integers and with a fault; 0 if c is o; infinite if only r and o are zero.
      ratio_max: max|c - o| / max(max|r - o|, 2u·max|o|), likewise.
      unit: the u of the ratios; None where they are None.
      left_out: the number of elements that the caller excluded.
      samples: pairs (|r|, |c - r|) of some elements, rounded to three digits, for a plot.
    """

    kind: Kind
    name: str
    step: int
    shape: tuple[int, ...]
    dtype: str
    max_abs: float
    max_rel: float
    relative: float
    rms: float
    ulp: int | None
    index: tuple[int, ...]
    candidate: Number
    reference: Number
    magnitude: float
    fault: str | None = None
    ratio_rms: float | None = None
    ratio_max: float | None = None
    unit: float | None = None
    left_out: int = 0
    samples: tuple[tuple[float, float], ...] = ()

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def measure(
    candidate: Arrays,
    reference: Arrays,
    kind: Kind,
    step: int = 1,
    oracle: Arrays | None = None,
    unit: float | None = None,
    left_out: Arrays | None = None,
    samples: int = SAMPLES,
    carriers: Arrays | None = None,
) -> list[Difference]:
    """Return one difference for every name on either side, in the reference's order.

    Args:
      candidate: array-likes by name (with ml_dtypes: bfloat16, float8, int4). A gradient that does not exist
        is None or an array of JAX's float0; None, float0 and a gradient of zeros count as equal.
      reference: likewise.
      kind: the role of all these tensors.
      step: the training step.
      oracle: the same names from a more precise run; required for the ratios.
      unit: the unit roundoff of the compute dtype, for the ratios. Defaults to the candidate's or the
        reference's, whichever dtype has fewer digits.
      left_out: bool arrays for some of the names, True for elements to exclude.
      samples: the total number of points for the plot: at least 16 per tensor at step 1; at step n an n-th of
        that, but at least each tensor's worst element, to keep long runs small. 0 for no samples.
      carriers: for some of the names, the array that the tensor was computed from (an update from a weight).
        The tensor contains the carrier's rounding, so the ratios tolerate an error of u·|carrier|.

    Memory: a few arrays of 65,536 elements, for leaves of any size. torch counterpart:
    `torch.testing.assert_close`, which measures and judges at once.

    >>> import numpy as np
    >>> from jaxpar.parity.measuring import Kind, measure
    >>> (difference,) = measure({"w": np.array([1.0, 2.5])}, {"w": np.array([1.0, 2.0])}, Kind.WEIGHT)
    >>> difference.relative, difference.index
    (0.25, (1,))
    """
    names = list(dict.fromkeys([*reference, *candidate]))
    points = max(16 if step <= 1 else 1, samples // max(step, 1) // max(len(names), 1)) if samples else 0
    differences = []
    for name in names:
        c, r, o = (_array(side.get(name)) for side in (candidate, reference, oracle or {}))
        out = None if left_out is None or name not in left_out else np.asarray(left_out[name], bool)
        fault = _missing(name, candidate, reference, oracle) or _fault(kind, c, r, o, out)
        if fault is None and c is not None and r is not None:
            measured = _numbers(c, r, o, out, unit, points, (carriers or {}).get(name))
        else:
            measured = _nothing(fault)
        shape = next((x.shape for x in (r, c) if x is not None), ())
        types = dict.fromkeys("none" if x is None else str(x.dtype) for x in (c, r))
        differences.append(Difference(kind, name, step, shape, " / ".join(types), **measured))
    return differences


def _missing(name: str, candidate: Arrays, reference: Arrays, oracle: Arrays | None) -> str | None:
    if name not in candidate or name not in reference:
        return f"only in the {'reference' if name in reference else 'candidate'}"
    return "the oracle has no such tensor" if oracle is not None and name not in oracle else None


def _fault(
    kind: Kind, c: Array | None, r: Array | None, o: Array | None, left_out: Array | None
) -> str | None:
    if c is None or r is None:
        return _nothing_against_something(kind, c, r)
    kinds = [category(x.dtype) for x in (c, r)]
    if kinds[0] != kinds[1] or "other" in kinds:
        return f"dtype {c.dtype} in the candidate, {r.dtype} in the reference"
    if o is not None and category(o.dtype) != kinds[1]:
        return f"dtype {o.dtype} in the oracle, {r.dtype} in the reference"
    for side, x in (("candidate", c), ("oracle", o), ("mask of what is left out", left_out)):
        if x is not None and x.shape != r.shape:
            return f"shape {list(x.shape)} in the {side}, {list(r.shape)} in the reference"
    return None


def _nothing_against_something(kind: Kind, c: Array | None, r: Array | None) -> str | None:
    present = r if c is None else c
    if present is None:
        return None
    without, with_ = ("candidate", "reference") if c is None else ("reference", "candidate")
    # For a parameter that the loss does not depend on, torch has None where JAX has zeros.
    if kind not in (Kind.GRADIENT, Kind.INPUT_GRADIENT):
        return f"None in the {without}, {present.dtype}{list(present.shape)} in the {with_}"
    return f"no gradient in the {without}, and not zero in the {with_}" if present.any() else None


def _array(x: npt.ArrayLike | None) -> Array | None:
    """Return a NumPy array, without a copy where possible; None for None and float0."""
    if x is None:
        return None
    array = np.asarray(x)
    return None if array.dtype.names == ("float0",) else array


def _numbers(
    c: Array,
    r: Array,
    o: Array | None,
    left_out: Array | None,
    unit: float | None,
    points: int,
    carrier: npt.ArrayLike | None,
) -> dict[str, Any]:
    exact = category(r.dtype) in ("bool", "integer")
    measured = integers(c, r, left_out) if exact else distance(c, r, o, left_out)
    numbers = _plain(measured, c, r)
    if measured.disagreements:
        numbers |= _disagreement(
            measured, c, r, "values differ" if exact else "NaN or infinities do not agree"
        )
    elif not exact and o is not None:
        numbers |= _ratios(measured, unit or unit_roundoff(narrower(c, r)), carrier)
    if left_out is not None:
        numbers["left_out"] = int(left_out.sum())
    return numbers | {"samples": () if exact else _samples(c, r, measured.position, points)}


def _plain(measured: Distance, c: Array, r: Array) -> dict[str, Any]:
    at = measured.position if measured.compared else None
    return {
        "max_abs": measured.largest,
        "max_rel": measured.element_wise,
        "relative": _over(measured.largest, measured.magnitude),
        "rms": measured.rms,
        "ulp": measured.ulp,
        "index": () if at is None else tuple(int(i) for i in np.unravel_index(at, r.shape)),
        "candidate": None if at is None else c.flat[at].item(),
        "reference": None if at is None else r.flat[at].item(),
        "magnitude": measured.magnitude,
    }


def _disagreement(measured: Distance, c: Array, r: Array, what: str) -> dict[str, Any]:
    where = tuple(int(i) for i in np.unravel_index(measured.first_disagreement, r.shape))
    c_value, r_value = (x.flat[measured.first_disagreement].item() for x in (c, r))
    count = f"{measured.disagreements:,} of {r.size:,} {what}"
    fault = f"{count}, first at {list(where)}: {c_value} in the candidate, {r_value} in the reference"
    return {
        "fault": fault,
        "relative": math.inf,
        "index": where,
        "candidate": c_value,
        "reference": r_value,
    }


def _nothing(fault: str | None) -> dict[str, Any]:
    """Return the attributes for tensors without comparable elements: equal, or infinitely far apart."""
    far = 0.0 if fault is None else math.inf
    numbers = dict.fromkeys(("max_abs", "max_rel", "relative", "rms"), far)
    empty = {"ulp": None, "index": (), "candidate": None, "reference": None, "magnitude": 0.0}
    return numbers | empty | {"fault": fault}


def _ratios(measured: Distance, unit: float, carrier: npt.ArrayLike | None) -> dict[str, float]:
    """Return the candidate's error divided by the reference's, or by the oracle's rounding if larger."""
    (rms_c, max_c), (rms_r, max_r) = measured.candidate_error, measured.reference_error
    rms_o, max_o = measured.oracle_size
    if carrier is not None:
        carried = np.asarray(carrier)
        rms_w, max_w = distance(carried, carried, carried).oracle_size
        rms_o, max_o = max(rms_o, rms_w), max(max_o, max_w)
    # The denominator is at least one rounding of the oracle: a reference that is exact by luck would make any
    # healthy candidate infinitely worse.
    return {
        "ratio_rms": _over(rms_c, max(rms_r, unit * rms_o)),
        "ratio_max": _over(max_c, max(max_r, 2 * unit * max_o)),
        "unit": unit,
    }


def _over(error: float, scale: float) -> float:
    if error == 0:
        return 0.0
    return error / scale if 0 < scale < math.inf else math.inf


def _samples(c: Array, r: Array, worst: int, points: int) -> tuple[tuple[float, float], ...]:
    """Sample the worst element and one random element per equal part; the same in every run."""
    if not points or not r.size:
        return ()
    count = min(points - 1, r.size)
    # Random positions, because equal strides could hit the same channel every time.
    drawn = (np.arange(count) + np.random.default_rng(0).random(count)) * (r.size / max(count, 1))
    positions = np.unique([worst, *np.minimum(drawn.astype(np.int64), r.size - 1)])
    wide = np.complex128 if r.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        a, b = (x.flat[positions].astype(wide) for x in (c, r))
        pairs = zip(np.abs(b).tolist(), np.abs(a - b).tolist(), strict=True)
    finite = ((x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y))
    return tuple((float(f"{x:.3g}"), float(f"{y:.3g}")) for x, y in finite)
