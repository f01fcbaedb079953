"""Comparison: the verdict and its forms; what is written is read back, and nothing else is."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from jaxpar import parity
from jaxpar.errors import JaxparError, ParityError
from jaxpar.parity import (
    Cause,
    Comparison,
    Curve,
    Divergence,
    Kind,
    LayerResult,
    Level,
    Outcome,
    Policy,
    measuring,
)
from jaxpar.parity.measuring import Difference, Judged

RANDOM = np.random.RandomState(0)


def compared(changes=(), names=("fc1.weight", "fc1.bias", "fc2.weight"), **options) -> Comparison:
    """Gradients of a small model; those in `changes` are off by 3e-7."""
    r = {name: RANDOM.standard_normal((4, 5)) for name in names}
    c = {name: x * (1 + 3e-7 * (name in changes)) for name, x in r.items()}
    rows = measuring.judge(measuring.measure(c, r, Kind.GRADIENT), Policy(), options.pop("noise", None))
    return Comparison(Level.SEMANTIC, rows, **options)


CURVE = Curve((1, 2, 3), (1e-8, 2e-8, 3e-8), (0.0, 1e-9, 1e-9), (2e-8, 2e-8, 2e-8), first_outside=3)
DIVERGENCE = Divergence(
    reference="norm",
    candidate="LayerNorm_0",
    kind="LayerNorm",
    where="Its output differs by 4.5e-06 at step 1.",
    causes=(Cause("epsilon=1e-05", 2e-15),),
    layers=(
        LayerResult("fc1", "Dense_0", "Linear", 1e-16, True),
        LayerResult("norm", "LayerNorm_0", "LayerNorm", 4.5e-6, False, "epsilon is 1e-06"),
    ),
)


# ------------------------------------------------------------------------------------- the verdict


def test_same():
    c = compared()
    assert c.same
    assert c.different == ()
    assert c.largest is not None
    parity.require_same(c)


def test_different():
    c = compared(["fc2.weight", "fc1.bias"])
    assert not c.same
    assert [row.difference.name for row in c.different] == ["fc1.bias", "fc2.weight"]
    assert c.largest in c.different


def test_nothing_compared_is_not_the_same():
    c = Comparison(Level.SEMANTIC, ())
    assert (c.same, c.largest) == (False, None)
    assert str(c).startswith("Nothing was compared at the semantic level.")
    with pytest.raises(ParityError, match="Nothing was compared"):
        parity.require_same(c)


def test_noise_alone_is_the_same_and_never_the_largest():
    r = {"fc": np.ones(3), "bias": np.full(3, 1e-17)}
    c = {"fc": np.ones(3) * (1 + 1e-15), "bias": np.full(3, -1e-17)}
    rows = measuring.judge(measuring.measure(c, r, Kind.GRADIENT), Policy(), measuring.noise(r))
    found = Comparison(Level.SEMANTIC, rows)
    assert found.same
    assert found.largest.difference.name == "fc"
    assert "gradient bias: its gradient is rounding" in str(found)


def test_there_is_no_truth_value():
    with pytest.raises(TypeError, match=r"use \.same"):
        bool(compared())


def test_the_error_says_everything():
    c = compared(["fc1.bias"], divergence=DIVERGENCE, subject="MLP against MLP", notes=("3 kinks.",))
    with pytest.raises(ParityError) as caught:
        parity.require_same(c)
    message = str(caught.value)
    for text in (
        "Different at the semantic level: 1 of 3 tensors.",
        "MLP against MLP",
        "First divergence: norm in torch, LayerNorm_0 in Flax (LayerNorm).",
        "Likely cause: it is equal to 2e-15 if epsilon=1e-05.",
        "different  gradient  fc1.bias",
        "3.0e-07",
        "Note: 3 kinks.",
    ):
        assert text in message
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, JaxparError)


CURVES = {
    # name: (first outside, resync, largest envelope before it, whether it counts)
    "inside": (None, True, 1e-8, False),
    "resync": (150, True, 1.0, True),
    "free and early": (20, False, 1.0, True),
    "free and late, narrow": (150, False, 9e-5, True),
    "free and late, wide": (150, False, 2e-4, False),
}


@pytest.mark.parametrize("case", CURVES)
def test_a_curve_that_leaves_its_envelope(case):
    first, resync, high, counts = CURVES[case]
    steps = tuple(range(1, 201))
    curve = Curve(steps, (1.0,) * 200, (0.0,) * 200, (high,) * 200, first, resync)
    assert curve.failing is counts
    found = dataclasses.replace(compared(), curve=curve)
    assert found.same is not counts
    assert (f"the trajectory leaves its envelope at step {first}" in str(found)) is counts


def test_a_curve_has_one_value_for_each_step():
    with pytest.raises(ValueError, match="Curve: 3 steps, 2 errors, 3 and 3 values of the envelope"):
        dataclasses.replace(CURVE, candidate=(1.0, 2.0))


def test_repr_is_short():
    assert repr(compared()) == "<Comparison: semantic, same, 3 tensors>"


# --------------------------------------------------------------------------------------------- text

MANY = [f"encoder.layers.{i}.attention.{'long.' * 18}weight" for i in range(400)]


def rendered(c: Comparison, width: int, terminal: bool = True) -> str:
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=terminal, legacy_windows=False).print(c)
    return file.getvalue()


def test_the_worst_is_first_and_many_are_counted():
    lines = str(compared(["b", "c"], names="abcde")).splitlines()
    table = [line.split()[:3] for line in lines[5:10]]
    assert [row[2] for row in table[:2]] in (["b", "c"], ["c", "b"])
    text = str(compared(MANY[5:60], names=MANY))
    assert "Different at the semantic level: 55 of 400 tensors." in text
    assert "and 35 more different" in text
    assert "and 342 more same" in text
    assert text.count("encoder") == 23


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_too_long_and_no_number_is_cut(width):
    text = rendered(compared(MANY[5:60], names=MANY), width, terminal=False)
    assert max(map(len, text.splitlines())) <= width
    assert "3.0e-07" in text
    assert "1.0e-10" in text


def test_colours_are_only_for_those_who_want_them(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;31m" in rendered(compared(["fc1.bias"]), 100)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;31m" not in rendered(compared(["fc1.bias"]), 100)
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b" not in str(compared(["fc1.bias"]))


def test_an_empty_path_has_a_name(tmp_path):
    c = compared(
        [""], names=["", "fc"], divergence=dataclasses.replace(DIVERGENCE, reference="", candidate="out")
    )
    assert "different  gradient  the gradient" in str(c)
    assert "First divergence: the model itself in torch, out in Flax" in str(c)
    assert junit(c, tmp_path).find("testcase").get("name") == "the gradient"


def test_names_are_no_markup():
    assert "[red]x[/red] [/]" in str(compared(names=["[red]x[/red] [/]"], notes=("[bold]note",)))


# --------------------------------------------------------------------------------------------- JSON

WORDS = st.text(max_size=8)
NUMBERS = st.floats(allow_nan=False)
ELEMENTS = st.none() | st.booleans() | st.integers() | NUMBERS | st.complex_numbers(allow_nan=False)
DIFFERENCES = st.builds(
    Difference,
    kind=st.sampled_from(Kind), name=WORDS, step=st.integers(1, 99), shape=st.tuples(st.integers(0, 9)),
    dtype=WORDS, max_abs=NUMBERS, max_rel=NUMBERS, relative=NUMBERS, rms=NUMBERS,
    ulp=st.none() | st.integers(0, 2**64), index=st.tuples(st.integers(0, 9)), candidate=ELEMENTS,
    reference=ELEMENTS, magnitude=NUMBERS, fault=st.none() | WORDS, ratio_rms=st.none() | NUMBERS,
    ratio_max=st.none() | NUMBERS, unit=st.none() | NUMBERS, left_out=st.integers(0, 9),
    samples=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=2).map(tuple),
)  # fmt: skip
ROWS = st.builds(Judged, DIFFERENCES, st.sampled_from(Outcome), NUMBERS, NUMBERS, WORDS)
LAYERS = st.builds(LayerResult, WORDS, WORDS, WORDS, NUMBERS, st.booleans(), WORDS)
CAUSES = st.builds(Cause, WORDS, NUMBERS)
DIVERGENCES = st.builds(Divergence, WORDS, WORDS, WORDS, WORDS, st.tuples(CAUSES), st.tuples(LAYERS))
COMPARISONS = st.builds(
    Comparison,
    level=st.sampled_from(Level), rows=st.lists(ROWS, max_size=3).map(tuple), steps=st.integers(1, 9),
    replicas=st.integers(1, 9), curve=st.none() | st.just(CURVE), subject=WORDS, seconds=NUMBERS,
    environment=st.dictionaries(WORDS, WORDS, max_size=2), notes=st.tuples(WORDS),
    divergence=st.none() | DIVERGENCES,
    policy=st.builds(Policy, st.sampled_from(Level), NUMBERS, overrides=st.tuples(st.tuples(WORDS, NUMBERS))),
)  # fmt: skip


def as_json(c: Comparison) -> str:
    return json.dumps(c.as_dict(), allow_nan=False)


@given(COMPARISONS)
@settings(max_examples=80, deadline=None)
def test_what_is_written_is_read_back(c):
    assert Comparison.from_json(as_json(c)) == c


def test_json_is_strict(tmp_path):
    c = compared()
    d = dataclasses.replace(
        c.rows[0].difference, candidate=math.nan, reference=complex(1, math.inf), max_rel=math.inf
    )
    c = dataclasses.replace(c, rows=(dataclasses.replace(c.rows[0], difference=d),))
    c.save_json(tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text("ascii")
    found = json.loads(text, parse_constant=pytest.fail)
    assert (found["format"], found["version"], found["same"]) == ("jaxpar.parity.Comparison", 1, True)
    row = found["rows"][0]["difference"]
    assert (row["candidate"], row["reference"]) == ("NaN", {"real": 1.0, "imag": "Infinity"})
    assert (row["max_rel"], row["kind"], row["shape"]) == ("Infinity", "gradient", [4, 5])
    assert json.loads(as_json(Comparison.from_json(text))) == found


def planted(change) -> str:
    found = json.loads(as_json(compared(curve=CURVE)))
    change(found)
    return json.dumps(found)


JSON_FAULTS = {
    "no JSON": ("{", "this is no JSON"),
    "a list": ("[]", "this is no comparison"),
    "another document": ('{"format": "x"}', 'its "format" is not'),
    "a NaN": ('{"format": NaN}', 'JSON has no NaN; it is written as the text "NaN"'),
    "a key twice": ('{"format": 1, "format": 2}', "twice in one object: 'format'"),
    "very deep": ("[" * 10**5, "nested too deeply"),
    "another version": (planted(lambda d: d.update(version=2)), "has version 2, this jaxpar reads 1"),
    "another verdict": (planted(lambda d: d.update(same=True)), '"same" is True, but its rows say False'),
    "a missing field": (planted(lambda d: d["rows"][1].pop("limit")), r"rows\[1\]: missing or unknown: l"),
    "an unknown field": (planted(lambda d: d.update(extra=1)), "comparison: missing or unknown: extra"),
    "another level": (planted(lambda d: d.update(level="x")), "level: 'x' is not 'semantic' or 'numeric' or"),
    "a text for a number": (
        planted(lambda d: d["rows"][0].update(value="1")), r"rows\[0\]\.value: '1' is not a number",
    ),
    "true for a number": (planted(lambda d: d.update(seconds=True)), "seconds: True is not a number"),
    "too large a number": (planted(lambda d: d.update(seconds=10**400)), "is not a number of float64"),
    "a float for an int": (planted(lambda d: d.update(steps=1.0)), "steps: 1.0 is not int"),
    "a number for a text": (planted(lambda d: d["environment"].update(jax=1)), "environment.jax: 1 is not"),
    "an object for a list": (planted(lambda d: d.update(rows={})), "rows: {} is not a list"),
    "a list for an object": (planted(lambda d: d.update(policy=[])), r"policy: \[\] is not an object"),
    "three of two": (
        planted(lambda d: d["rows"][0]["difference"].update(samples=[[1, 2, 3]])),
        r"samples\[0\]: \[1, 2, 3\] is not a list of 2",
    ),
    "a shorter curve": (planted(lambda d: d["curve"].update(low=[])), "Curve: 3 steps, 3 errors, 0 and 3"),
}  # fmt: skip


@pytest.mark.parametrize("fault", JSON_FAULTS)
def test_a_planted_fault_in_json_is_refused(fault):
    text, message = JSON_FAULTS[fault]
    with pytest.raises(ValueError, match=message):
        Comparison.from_json(text)


# -------------------------------------------------------------------------------------------- JUnit


def junit(c: Comparison, tmp_path) -> ElementTree.Element:
    c.save_junit(tmp_path / "c.xml")
    root = ElementTree.parse(tmp_path / "c.xml").getroot()
    (suite,) = root.findall("testsuite")
    assert (root.tag, suite.attrib.items() >= root.attrib.items()) == ("testsuites", True)
    counts = {key: len(suite.findall(f"testcase{path}")) for key, path in COUNTED.items()}
    assert {key: int(suite.get(key)) for key in COUNTED} == counts
    names = [(case.get("classname"), case.get("name")) for case in suite.findall("testcase")]
    assert len(names) == len(set(names))
    return suite


COUNTED = {"tests": "", "failures": "/failure", "skipped": "/skipped", "errors": "/error"}


def test_junit(tmp_path):
    r = {"fc": np.ones(3), "bias": np.full(3, 1e-17), "other": np.ones(3)}
    rows = ()
    for step in range(1, 16):
        c = r | {"fc": np.ones(3) * (1 + 1e-7 * (step > 2)), "bias": -r["bias"]}
        found = measuring.measure(c, r, Kind.GRADIENT, step=step)
        rows += measuring.judge(found, Policy(), {"bias": "its gradient is noise"})
    environment = {"jax": "0.10.2"}
    suite = junit(Comparison(Level.SEMANTIC, rows, 15, 4, DIVERGENCE, CURVE, environment), tmp_path)
    cases = {(case.get("classname"), case.get("name")): case for case in suite.findall("testcase")}
    assert list(cases) == [
        *[("parity.gradient", name) for name in r],
        ("parity.layer", "fc1"),
        ("parity.layer", "norm"),
        ("parity.trajectory", "curve"),
    ]
    failure = cases["parity.gradient", "fc"].find("failure")
    assert failure.get("message") == "step 3: relative 1e-07 is above 1e-10"
    assert failure.text.splitlines()[-1] == "and 3 more steps"
    assert cases["parity.gradient", "bias"].find("skipped").get("message") == "its gradient is noise"
    assert "equal to 2e-15 if epsilon=1e-05" in cases["parity.layer", "norm"].find("failure").text
    assert len(cases["parity.layer", "fc1"]) == 0
    assert cases["parity.trajectory", "curve"].find("failure") is not None
    properties = {each.get("name"): each.get("value") for each in suite.iter("property")}
    assert properties == {"level": "semantic", "steps": "15", "replicas": "4", "jax": "0.10.2"}


def test_junit_of_nothing_fails(tmp_path):
    assert junit(Comparison(Level.NUMERIC, ()), tmp_path).get("failures") == "1"


def test_junit_holds_any_name(tmp_path):
    name = "a<b>&\"'\x00\x1b]]>\ud800é"
    suite = junit(compared([name], names=[name], subject=name), tmp_path)
    assert suite.find("testcase").get("name") == "a<b>&\"'\ufffd\ufffd]]>\ufffdé"
