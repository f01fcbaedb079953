"""measure: every number against its formula in long double, and every fault against a planted one."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxpar.parity.measuring import Kind, kinks, measure, noise, noise_elements
from jaxpar.parity.measuring._distance import CHUNK, distance, unit_roundoff

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TYPES = [np.dtype(t) for t in ("float64", "float32", "float16", "complex64", "complex128")] + [BFLOAT16]
SUMS = ("rms", "candidate_error", "reference_error", "oracle_size")
"""What a distance adds up over all elements."""
SHAPES = [(), (0,), (1,), (3, 0, 2), (7, 5), (2, CHUNK // 2 + 3)]


def draw(shape, dtype, seed=0):
    random = np.random.RandomState(seed)
    x = random.standard_normal(shape)
    return np.asarray(x + 1j * random.standard_normal(shape) if dtype.kind == "c" else x).astype(dtype)


def nudged(x, seed=1):
    """A few roundings away."""
    unit = unit_roundoff(x.dtype)
    return np.asarray(x * (1 + 4 * unit * draw(x.shape, np.dtype(float), seed))).astype(x.dtype)


def one(c, r, kind=Kind.OUTPUT, **options):
    (found,) = measure({"x": c}, {"x": r}, kind, **options)
    return found


def wide(x):
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


def close(got, want):
    return got == pytest.approx(float(want), rel=1e-12, abs=0)


# -------------------------------------------------------------------------------------- the numbers


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("order", ["in order", "transposed", "reversed"])
def test_numbers_are_their_formulas(shape, dtype, order):
    change = {"in order": lambda x: x, "transposed": np.transpose, "reversed": lambda x: x[..., ::-1]}[order]
    if shape == () and order == "reversed":
        change = np.copy
    r = change(draw(shape, dtype))
    c, o = change(nudged(draw(shape, dtype))), wide(r).astype(np.result_type(dtype, np.float64))
    o = nudged(o, 2) * (1 + unit_roundoff(dtype))
    d = one(c, r, oracle={"x": o})
    assert (d.fault, d.shape, d.dtype, d.step) == (None, r.shape, str(dtype), 1)
    if not r.size:
        assert (d.max_abs, d.relative, d.rms, d.ulp, d.ratio_rms, d.ratio_max) == (0, 0, 0, 0, 0, 0)
        assert (d.index, d.candidate, d.reference) == ((), None, None)
        return
    error, size = np.abs(wide(c) - wide(r)), np.abs(wide(r))
    assert close(d.max_abs, error.max())
    assert close(d.magnitude, size.max())
    assert close(d.relative, error.max() / size.max())
    assert close(d.max_rel, (error / size).max())
    assert close(d.rms, np.sqrt((error**2).mean()))
    assert close(error[d.index], d.max_abs)
    assert (d.candidate, d.reference) == (c[d.index].item(), r[d.index].item())
    unit = unit_roundoff(dtype)
    ours, theirs, true = (np.abs(x) for x in (wide(c) - wide(o), wide(r) - wide(o), wide(o)))
    rms_c, rms_r, rms_o = (np.sqrt((x**2).mean()) for x in (ours, theirs, true))
    assert close(d.ratio_rms, rms_c / max(rms_r, unit * rms_o))
    assert close(d.ratio_max, ours.max() / max(theirs.max(), 2 * unit * true.max()))
    assert d.unit == unit


def test_the_unit_is_the_callers_if_given():
    r, c = np.ones(4), np.full(4, 1 + 2.0**-20)
    assert one(c, r, oracle={"x": r}, unit=2.0**-11).ratio_max == 2.0**-20 / 2.0**-10


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e-150, 1e150, 1e200, 1e308])
def test_squares_neither_vanish_nor_overflow(scale):
    r = np.full(3 * CHUNK, scale)
    c = np.where(np.arange(r.size) % 2, 0.0, scale)
    d = one(c, r)
    assert d.rms == pytest.approx(scale / math.sqrt(2), rel=1e-3 if scale == 1e-320 else 1e-12, abs=0)
    mixed = np.concatenate([np.full(CHUNK, scale), np.ones(CHUNK), np.full(CHUNK, scale)])
    want = np.sqrt((wide(mixed) ** 2).mean())
    assert close(one(np.zeros_like(mixed), mixed).rms, want)


def test_a_difference_that_overflows_is_infinite():
    d = one(np.array([1e308, 1.0]), np.array([-1e308, 1.0]))
    assert (d.max_abs, d.rms, d.relative, d.index, d.fault) == (math.inf, math.inf, math.inf, (0,), None)


@pytest.mark.parametrize(("c", "r", "relative"), [(0.0, 0.0, 0.0), (1e-30, 0.0, math.inf), (0.0, 1e-30, 1.0)])
def test_relative_to_zero(c, r, relative):
    assert one(np.full(3, c), np.full(3, r)).relative == relative


def test_names_stay_in_the_references_order():
    found = measure(
        {"b": np.ones(1), "z": np.ones(1)}, {"c": np.ones(1), "b": np.ones(1)}, Kind.STATE, step=7
    )
    assert [(d.name, d.step, d.kind) for d in found] == [(n, 7, Kind.STATE) for n in "cbz"]


# ---------------------------------------------------------------------------------------------- ULP


@pytest.mark.parametrize("dtype", [np.dtype("float16"), BFLOAT16, np.dtype(ml_dtypes.float8_e4m3fn)], ids=str)
def test_ulp_is_the_rank_among_all_numbers(dtype):
    every = np.arange(2 ** (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}").view(dtype)
    with np.errstate(invalid="ignore"):
        values = every.astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    random = np.random.RandomState(0)
    for _ in range(40):
        i, j = random.randint(len(values), size=(2, 5))
        if random.rand() < 0.5:  # near ones as well
            j = np.clip(i + random.randint(-3, 4, size=5), 0, len(values) - 1)
        c, r = values[i].astype(dtype), values[j].astype(dtype)
        assert one(c, r).ulp == abs(i - j).max()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(0, 40), st.booleans())
@example(0.0, 3, False)
@example(-1e-45, 2, True)
@example(1.0, 5, False)
@example(-float(np.finfo(np.float32).max), 1, False)
@settings(max_examples=60, deadline=None)
def test_ulp_is_the_number_of_nextafter_steps(x, steps, up):
    for dtype in (np.float32, np.float64):
        r = np.array([x, 1.0], dtype)
        c = r.copy()
        taken = 0
        for _ in range(steps):
            with np.errstate(over="ignore"):
                following = np.nextafter(c[0], dtype(math.inf if up else -math.inf))
            if math.isfinite(following):
                c[0], taken = following, taken + 1
        assert one(c, r).ulp == taken


@given(
    st.integers(0, 2**32 - 1), st.sampled_from([1e-7, 1e-3, 0.3, 3.0]), st.sampled_from([1.0, 1e-38, 1e-44])
)
@settings(max_examples=60, deadline=None)
def test_ulp_looks_at_few_elements_and_finds_the_same(seed, relative, scale):
    random = np.random.RandomState(seed)
    r = (scale * np.exp(random.standard_normal(50))).astype(np.float32)
    c = (r * (1 + relative * random.standard_normal(50))).astype(np.float32)
    bits = [
        np.where(i < 0, -(i & 0x7FFFFFFF), i) for i in (x.view(np.int32).astype(np.int64) for x in (c, r))
    ]
    assert one(c, r).ulp == np.abs(bits[0] - bits[1]).max()


def test_ulp_of_opposite_ends():
    most = np.finfo(np.float64).max
    assert one(np.array([most]), np.array([-most])).ulp == 2 * int(np.array(most).view(np.int64))
    assert one(np.array([0.0]), np.array([-0.0])).ulp == 0


def test_ulp_is_counted_in_the_narrower_type():
    d = one(np.array([1 + 2.0**-22]), np.array([1], np.float32))
    assert (d.ulp, d.dtype) == (2, "float64 / float32")


# ------------------------------------------------------------------------- what cannot be compared

APART = "NaN or infinities do not agree, first at"
FAULTS = {
    "another shape": (np.ones((2, 3)), np.ones((3, 2)), "shape [2, 3] in the candidate, [3, 2] in the ref"),
    "another rank": (np.ones(3), np.ones((1, 3)), "shape [3] in the candidate, [1, 3] in the reference"),
    "a kind of dtype": (np.ones(2, int), np.ones(2), "dtype int64 in the candidate, float64 in the ref"),
    "bool for int": (np.ones(2, bool), np.ones(2, np.int32), "dtype bool in the candidate, int32 in"),
    "real for complex": (np.ones(2), np.ones(2, complex), "dtype float64 in the candidate, complex128 in"),
    "text": (np.array(["a"]), np.array(["a"]), "dtype <U1 in the candidate, <U1 in the reference"),
    "objects": (np.array([{}]), np.array([{}]), "dtype object in the candidate"),
    "NaN": (np.array([1, np.nan]), np.array([1, 2.0]), f"1 of 2 {APART} [1]: nan in the candidate, 2.0"),
    "no NaN": (np.array([1, 2.0]), np.array([1, np.nan]), f"1 of 2 {APART} [1]: 2.0 in the candidate, nan"),
    "NaN for infinity": (np.array([np.nan]), np.array([np.inf]), f"1 of 1 {APART} [0]: nan"),
    "infinity's sign": (np.array([np.inf]), np.array([-np.inf]), f"1 of 1 {APART} [0]: inf"),
    "a complex NaN": (np.array([1 + 1j * np.nan]), np.array([1 + 1j]), f"1 of 1 {APART}"),
    "integers": (
        np.array([[1, 2], [3, 4]]),
        np.array([[1, 2], [3, 5]]),
        "1 of 4 values differ, first at [1, ",
    ),
    "a large integer": (
        np.array([2**60 + 1]),
        np.array([2**60]),
        "1 of 1 values differ, first at [0]: 1152",
    ),
    "a sign": (np.array([-1]), np.array([2**64 - 1], np.uint64), "1 of 1 values differ, first at [0]: -1"),
    "a bool": (np.array([True]), np.array([False]), "1 of 1 values differ, first at [0]: True in the cand"),
    "None for state": (None, np.zeros(2), "None in the candidate, float64[2] in the reference"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    c, r, text = FAULTS[fault]
    d = one(c, r, Kind.STATE)
    assert d.fault is not None
    assert d.fault.startswith(text)
    assert d.relative == math.inf


def test_a_fault_beyond_the_first_chunk_has_its_place():
    r = np.zeros((3, CHUNK))
    c = r.copy()
    c[1, 5], c[2, 7] = np.nan, np.inf
    d = one(c, r)
    assert d.fault.startswith(
        f"2 of {3 * CHUNK:,} NaN or infinities do not agree, first at [1, 5]: nan in the"
    )
    assert d.index == (1, 5)
    whole = r.astype(np.int64)
    changed = whole.copy()
    changed[2, 9] = 4
    assert one(changed, whole).index == (2, 9)


def test_a_tensor_on_one_side_is_a_fault():
    found = measure({"a": np.ones(2)}, {"b": np.ones(2)}, Kind.WEIGHT)
    assert [(d.name, d.fault) for d in found] == [
        ("b", "only in the reference"),
        ("a", "only in the candidate"),
    ]


def test_the_oracle_has_everything():
    r = {"x": np.ones(2)}
    assert measure(r, r, Kind.LOSS, oracle={})[0].fault == "the oracle has no such tensor"
    assert (
        "dtype complex128 in the oracle"
        in measure(r, r, Kind.LOSS, oracle={"x": np.ones(2, complex)})[0].fault
    )
    assert "shape [3] in the oracle" in measure(r, r, Kind.LOSS, oracle={"x": np.ones(3)})[0].fault


def test_equal_nan_and_infinity_are_in_no_number():
    r = np.array([1.0, np.nan, np.inf, -np.inf, 3.0])
    c = np.array([1.0, np.nan, np.inf, -np.inf, 3.3])
    d = one(c, r)
    assert (d.fault, d.index, d.magnitude, d.candidate) == (None, (4,), 3.0, 3.3)
    assert close(d.rms, 0.3 / math.sqrt(2))
    d = one(c, r, oracle={"x": np.array([1.0, 1.0, 1.0, 1.0, np.nan])})
    assert (d.max_abs, d.ratio_max) == (0, 0)


FLOAT0 = np.dtype([("float0", np.void, 0)])


@pytest.mark.parametrize("kind", [Kind.GRADIENT, Kind.INPUT_GRADIENT])
def test_no_gradient_is_a_gradient_of_zeros(kind):
    nothing = [None, np.zeros(3, FLOAT0), np.zeros(3)]
    for c in nothing:
        for r in nothing:
            assert one(c, r, kind).fault is None
    something = np.array([0, 1e-30, 0])
    assert one(None, something, kind).fault == "no gradient in the candidate, and not zero in the reference"
    assert one(something, None, kind).fault == "no gradient in the reference, and not zero in the candidate"


def test_jax_arrays():
    import jax
    import jax.numpy as jnp

    gradient = jax.grad(lambda x, n: x**n, argnums=(0, 1), allow_int=True)(2.0, 3)
    assert one(gradient[1], None, Kind.GRADIENT).dtype == "none"
    x = jnp.array([1, 2], jnp.bfloat16)
    assert one(x, np.array([1, 2.0])).dtype == "bfloat16 / float64"


def test_elements_can_be_left_out():
    r, c = np.ones((2, 3)), np.ones((2, 3))
    c[0, 1], c[1, 2] = 5, 1.25
    out = np.zeros((2, 3), bool)
    out[0, 1] = True
    d = one(c, r, left_out={"x": out})
    assert (d.max_abs, d.index, d.left_out, d.candidate) == (0.25, (1, 2), 1, 1.25)
    assert close(d.rms, math.sqrt(0.25**2 / 5))
    assert one(c.astype(int), r.astype(int), left_out={"x": out}).fault is None
    c[0, 1] = np.nan
    assert one(c, r, left_out={"x": out}).fault is None
    assert "shape [3] in the mask" in one(c, r, left_out={"x": out[0]}).fault


# ---------------------------------------------------------------------------------- samples, memory


def test_samples_are_few_and_always_the_same():
    r = draw((300, 300), np.dtype(float))
    c = nudged(r)
    c[123, 45] += 1
    d = one(c, r)
    assert 1900 < len(d.samples) <= 2000
    assert d.samples == one(c, r).samples
    assert (float(f"{abs(r[123, 45]):.3g}"), 1.0) in d.samples
    shared = measure({str(i): c for i in range(40)}, {str(i): r for i in range(40)}, Kind.OUTPUT)
    assert {len(d.samples) for d in shared} <= {49, 50}
    assert one(c, r, samples=0).samples == ()
    assert 180 < len(one(c, r, step=10).samples) <= 200
    assert one(c, r, step=5000).samples == ((float(f"{abs(r[123, 45]):.3g}"), 1.0),)
    assert len(one(c[0, :5], r[0, :5]).samples) == 5


@pytest.mark.parametrize("shape", [(3, 3, 70, 65), (5, CHUNK + 1), (2, 0, 3)])
def test_the_order_in_memory_changes_nothing(shape):
    r = draw(shape, np.dtype(float))
    c, oracle, left_out = nudged(r), nudged(r), np.random.RandomState(1).random_sample(shape) < 0.1
    if r.size:
        c[-1, -1] = np.nan
    lying = [np.asfortranarray(x) for x in (c, r, oracle, left_out)]
    expected = dataclasses.asdict(distance(c, r, oracle, left_out))
    for arrays in (lying, [c, *lying[1:]]):
        found = dataclasses.asdict(distance(*arrays))
        for name in SUMS:  # added up in other pieces: on some processors the last digit is another one
            np.testing.assert_allclose(found.pop(name), expected[name], rtol=1e-14)
        assert repr(found) == repr({name: expected[name] for name in found})


@pytest.mark.parametrize("order", ["contiguous", "transposed"])
def test_no_leaf_is_copied(order):
    r = {"x": draw((1000, 1000), np.dtype("float32")), "y": np.arange(10)}
    c = {"x": nudged(r["x"]), "y": r["y"]}
    oracle = {"x": r["x"].astype(np.float64), "y": r["y"]}
    if order == "transposed":
        c["x"] = np.asfortranarray(c["x"])
    tracemalloc.start()
    try:
        measure(c, r, Kind.WEIGHT, oracle=oracle)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.5 * r["x"].nbytes


@pytest.mark.slow
def test_neither_jax_nor_torch_is_imported():
    code = "import sys, jaxpar.parity as p; p.measuring.measure, p.Comparison, p.Policy; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"jax", "torch", "flax"} & set(modules.split())


# ----------------------------------------------------------------------------------- noise and kinks

G = draw((20,), np.dtype(float))
NOISES = {
    "healthy": (G, G * (1 + 1e-7), None),
    "healthy and small": (1e-20 * G, 1e-20 * G * (1 + 1e-7), None),
    "nothing but rounding": (1e-17 * G, 1e-8 * G[::-1], "noise in the reference: RMS 1e-17 in float64"),
    "at a tenth": (G, G * 1.11, "noise in the reference"),
    "below a tenth": (G, G * 1.09, None),
    "zero": (0 * G, 0 * G, "its gradient is exactly 0"),
    "zero in float64": (0 * G, 1e-9 * G, "its gradient is exactly 0"),
    "no float32 run, rounding": (1e-16 * G, None, "is rounding: "),
    "no float32 run, small": (1e-10 * G, None, None),
    "none": (None, None, None),
    "float0": (np.zeros(3, FLOAT0), np.zeros(3, FLOAT0), None),
}


@pytest.mark.parametrize("case", NOISES)
def test_noise(case):
    double, single, text = NOISES[case]
    found = noise({"fc": G, "x": double}, None if single is None else {"fc": G, "x": single})
    assert set(found) == ({"x"} if text else set())
    assert text is None or text in found["x"]


def test_noise_in_a_part_of_a_tensor():
    double, single = G.copy(), (G * (1 + 1e-7)).copy()
    double[5:9], single[5:9] = 1e-17, 1e-8
    found = noise_elements({"qkv": double, "fc": G}, {"qkv": single, "fc": G})
    assert list(found) == ["qkv"]
    assert np.flatnonzero(found["qkv"]).tolist() == [5, 6, 7, 8]


def test_kinks():
    x = np.array([0, 9e-7, -9e-7, 1.1e-6, 6 - 5e-7, 1.0])
    assert (kinks(x), kinks(x, (0, 6)), kinks(x, (0, 0)), kinks(x, width=2e-6)) == (3, 4, 3, 4)
    assert kinks(np.zeros((2, CHUNK)).T) == 2 * CHUNK
    assert kinks(np.array([0, np.nan, np.inf], BFLOAT16)) == 1


def test_what_was_read_off_a_weight_carries_its_rounding():
    weight = {"w": np.full(4, 1.0, np.float32)}
    update = {"w": np.full(4, 1e-4)}
    off = {"w": update["w"] + 2.0**-24}  # one unit of the weight
    (alone,) = measure(off, update, Kind.UPDATE, oracle=update, unit=2.0**-24)
    (carried,) = measure(off, update, Kind.UPDATE, oracle=update, unit=2.0**-24, carriers=weight)
    assert alone.ratio_rms == pytest.approx(1e4)
    assert carried.ratio_rms == pytest.approx(1)
    (wrong,) = measure(
        {"w": off["w"] * 2}, update, Kind.UPDATE, oracle=update, unit=2.0**-24, carriers=weight
    )
    assert wrong.ratio_rms > 1000  # a planted fault


@pytest.mark.parametrize(
    ("dtype", "digits"), [("float64", 53), ("float32", 24), ("float16", 11), (ml_dtypes.bfloat16, 8)]
)
def test_the_unit_roundoff_is_half_a_step(dtype, digits):
    assert unit_roundoff(np.dtype(dtype)) == 2.0**-digits
