"""bisect names a planted difference in its first step; healthy pairs are the same, across frameworks."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from click.testing import CliRunner

from jaxpar import parity
from jaxpar._cli.main import cli
from jaxpar.errors import FileError
from jaxpar.parity._runs.operation_types import is_sum_of_bfloat16, representable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.runs.planted import PLANTS
from benchmarks.runs.run import first_step, main, tapped
from benchmarks.runs.training import Training, bfloat16

SGD = {"momentum": 0.9}
TRAININGS = [
    Training("regression", "torch", "float64", 5, "adam", weight_decay=0.1, rate=0.01, schedule="step"),
    Training("digits", "torch", "float64", 6, "sgd", SGD, rate=0.05, weight_decay=0.01),
    Training(
        "letters", "torch", "float64", 7, "adam", weight_decay=0.1, rate=0.01, schedule="warm", clip=0.05
    ),
    Training("regression", "torch", "float64", 8, "sgd", SGD, world=2),
    Training("letters", "torch", "float64", 9, "sgd", rate=0.1, accumulate=2),
    Training("regression", "torch", "float64", 10, "sgd", dropout=0.2),
    Training("digits", "torch", "float32", 11, "rmsprop", rate=1e-3),
]
ROWS = []
for _plant in PLANTS:
    for _b in ("jax", "torch"):
        _pairs = [(t, replace(t, framework=_b), _plant) for t in TRAININGS if _b == "torch" or not t.dropout]
        _rows = [row for row in _pairs if _plant.make(row[1], Random(0))]
        ROWS += [pytest.param(*row, id=f"{_plant.name}-{_b}".replace(" ", "_")) for row in _rows[:1]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("a", "b", "plant"), ROWS)
def test_a_difference_is_named_in_its_first_step(a, b, plant, folder):
    faulty = plant.make(b, Random(0))
    result = parity.bisect(tapped(a, folder), tapped(faulty, folder))
    assert not result.same
    assert any(re.search(plant.named, text) for text in (*result.causes, *result.notes)), str(result)
    assert result.step == first_step(tapped(faulty, folder), tapped(b, folder))


def test_every_difference_applies_to_a_training():
    assert {row.values[2].name for row in ROWS} == {plant.name for plant in PLANTS}


@pytest.mark.parametrize("training", TRAININGS, ids=lambda t: f"{t.model}-{t.optimizer}-{t.seed}")
def test_healthy_runs_are_the_same(training, folder):
    # The same masks in one framework alone.
    other = replace(training, framework="torch" if training.dropout else "jax")
    result = parity.bisect(tapped(training, folder), tapped(other, folder))
    assert result.same, str(result)
    nudged = tapped(replace(training, plant=(("nudge", True),)), folder)
    result = parity.bisect(tapped(training, folder), tapped(other, folder), nudged=nudged)
    assert result.same, str(result)


def test_two_world_sizes_are_compared_over_all_rows(folder):
    training = TRAININGS[3]
    result = parity.bisect(tapped(training, folder), tapped(replace(training, world=1), folder))
    assert result.same, str(result)
    assert any("2 processes and run B 1" in note for note in result.notes)


def linear(folder, *, rows=slice(None), steps=4, names=("w", "b"), seed=0, **faults):
    """Tap a small training of NumPy; `faults` change what is tapped from step 2 on."""
    random = np.random.default_rng(0)
    weights = {names[0]: random.standard_normal((3, 4)), names[1]: random.standard_normal(4)}
    with parity.Tap(folder, start=weights, seed=seed) as tap:
        for step in range(steps):
            x = random.standard_normal((6, 3))[rows]
            gradients = {name: random.standard_normal(w.shape) for name, w in weights.items()}
            weights = {name: w - 0.1 * gradients[name] for name, w in weights.items()}
            values = {"loss": 1.0 + step, "gradients": gradients, "parameters": weights, "rate": 0.1}
            if step >= 2:
                values |= faults
            tap(step, batch=x, **values)


@pytest.mark.parametrize(
    ("loss", "text"), [(np.nan, "loss of run B is not finite"), (8.0, "only the reported loss")]
)
def test_losses(loss, text, tmp_path):
    linear(tmp_path / "a")
    linear(tmp_path / "b", loss=loss)
    result = parity.bisect(tmp_path / "a", tmp_path / "b")
    assert (result.step, result.part) == (2, "loss")
    assert text in result.causes[0]
    json.dumps(result.as_dict(), allow_nan=False)


def test_gradients_that_one_run_taps_before_clipping_are_noted(tmp_path):
    linear(tmp_path / "a")
    random = np.random.default_rng(0)
    linear(tmp_path / "b")
    weights = {"w": random.standard_normal((3, 4)), "b": random.standard_normal(4)}
    with parity.Tap(tmp_path / "c", start=weights) as tap:
        for step in range(4):
            x = random.standard_normal((6, 3))
            gradients = {name: random.standard_normal(w.shape) for name, w in weights.items()}
            weights = {name: w - 0.1 * gradients[name] for name, w in weights.items()}
            raw = {name: g * (3.0 + step) for name, g in gradients.items()}
            tap(step, batch=x, loss=1.0 + step, gradients=raw, parameters=weights, rate=0.1)
    result = parity.bisect(tmp_path / "a", tmp_path / "c")
    assert result.same
    assert any("one run taps them before clipping" in note for note in result.notes)


def test_names_that_differ_are_matched_by_content_or_given(tmp_path):
    linear(tmp_path / "a")
    linear(tmp_path / "b", names=("dense.kernel", "dense.offset"))
    for names in (None, {"w": "dense.kernel", "b": "dense.offset"}):
        result = parity.bisect(tmp_path / "a", tmp_path / "b", names=names)
        assert result.same
        assert not any("counterpart" in text for text in result.unreached)
    with pytest.raises(ValueError, match="names has v, which run A did not tap"):
        parity.bisect(tmp_path / "a", tmp_path / "b", names={"v": "w"})


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    linear(tmp_path / "a")
    linear(tmp_path / "seed", seed=1)
    with parity.Tap(tmp_path / "later") as tap:
        tap(100, loss=1.0)
    with pytest.raises(FileError, match=r"seed 0 and .* with 1"):
        parity.bisect(tmp_path / "a", tmp_path / "seed")
    with pytest.raises(FileError, match=r"steps 0 to 3 and .* 100 to 100: none in common"):
        parity.bisect(tmp_path / "a", tmp_path / "later")


def test_steps_that_one_run_lacks_are_noted(tmp_path):
    linear(tmp_path / "a", steps=6)
    linear(tmp_path / "b")
    assert "steps 4 to 5 (2) are in run A alone" in str(parity.bisect(tmp_path / "a", tmp_path / "b"))


def test_values_that_a_small_type_holds():
    x = np.random.default_rng(0).standard_normal(50)
    assert representable(bfloat16(x)) == "bfloat16"
    assert representable(x.astype(np.float16)) == "float16"
    assert representable(x.astype(np.float32)) == ""
    assert representable(np.arange(16.0)) == ""
    assert representable(bfloat16(x)[:3]) == ""
    assert is_sum_of_bfloat16((bfloat16(x) + bfloat16(x[::-1])) / 2)
    assert not is_sum_of_bfloat16(x.astype(np.float16))


# ------------------------------------------------------------------------------------------------- command


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("command")
    linear(path / "a")
    linear(path / "b", rate=0.3)
    return path


COMMANDS = {
    "the same": (["a", "a"], 0, "The runs are the same for 4 steps"),
    "different": (["a", "b"], 1, "The runs part in step 2: the learning rate"),
    "nudged": (["a", "b", "--nudged", "a"], 1, "The runs part in step 2"),
    "no folder": (["a", "none"], 2, "none: it is no folder of taps"),
    "a wrong name": (["a", "b", "--name", "w"], 2, "--name is NAME=OTHER"),
    "an unknown name": (["a", "b", "--name", "v=w"], 2, "names has v"),
    "no such folder for the page": (["a", "b", "--html", "none/x.html"], 2, "there is no folder"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_ends_with_its_code(name, runs, monkeypatch):
    arguments, code, text = COMMANDS[name]
    monkeypatch.chdir(runs)
    done = CliRunner().invoke(cli, ["bisect", *arguments])
    assert done.exit_code == code, done.output
    assert text in " ".join(done.output.split())


def test_json_has_a_format_and_a_version(runs):
    done = CliRunner().invoke(cli, ["bisect", str(runs / "a"), str(runs / "b"), "--json"])
    document = json.loads(done.stdout)
    assert (document["format"], document["version"]) == ("jaxpar.parity.Bisection", 1)
    assert (document["step"], document["part"], document["same"]) == (2, "rate", False)
    assert len(document["curves"]["rate"]["distances"]) == 4


def test_the_page_is_valid_xml_with_a_curve(runs, tmp_path):
    from xml.etree import ElementTree

    path = tmp_path / "report.html"
    CliRunner().invoke(cli, ["bisect", str(runs / "a"), str(runs / "b"), "--html", str(path)])
    text = path.read_text()
    ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n").replace("&nbsp;", " "))
    assert "The runs part in step 2: the learning rate." in text
    assert 'id="rate-title"' in text


@pytest.mark.full
def test_the_benchmark_prints_its_page(capsys):
    main(["--pairs", "2", "--healthy", "1", "--seed", "0"])
    output = capsys.readouterr().out
    assert "| pairs with a difference that are called different | 2 of 2 |" in output
    assert "that are the same | 5 of 5 |" in output


@pytest.mark.parametrize(("nan_in", "noted"), [("ab", True), ("", False)])
def test_losses_that_are_lost_in_both_runs_are_noted(nan_in, noted, tmp_path):
    """Two runs that are not finite are equal to the last bit, which is no agreement."""
    for name in "ab":
        tap = parity.Tap(tmp_path / name)
        for step in range(4):
            tap(step, loss=np.nan if name in nan_in and step > 1 else 1.0)
    notes = parity.bisect(tmp_path / "a", tmp_path / "b").notes
    text = "the loss of both runs is not finite in 2 steps (from 2 on)"
    assert any(text in note for note in notes) == noted


def test_the_bits_of_noise_are_no_cast(tmp_path):
    # The gradient of a bias before a softmax is rounding: a few bits, of either sign.
    random = np.random.default_rng(1)
    for run, factor in (("a", 1.0), ("b", 1.01)):
        with parity.Tap(tmp_path / run, start={"w": np.ones((4, 4)), "key": np.ones(16)}) as tap:
            for step in range(3):
                noise = 2.0**-30 * np.random.default_rng(step).integers(1, 120, 16)
                noise = noise if run == "a" else noise * np.pi
                gradients = {"w": random.standard_normal((4, 4)), "key": noise}
                tap(step, loss=factor, gradients=gradients)
    result = parity.bisect(tmp_path / "a", tmp_path / "b")
    assert not any("rounded to" in cause for cause in result.causes), str(result)


def test_rounded_gradients_with_one_largest_value_twice_are_not_clipped(tmp_path):
    random = np.random.default_rng(2)
    with (
        parity.Tap(tmp_path / "a", start={"w": np.ones(40)}) as full,
        parity.Tap(tmp_path / "b", start={"w": np.ones(40)}) as rounded,
    ):
        for step in range(6):
            x = random.uniform(-0.9, 0.9, 40)
            if step in (1, 4):
                x[7] = 1.0001 + 1e-4 * step
            full(step, loss=1.0, gradients={"w": x})
            rounded(step, loss=1.0, gradients={"w": bfloat16(x)})
    result = parity.bisect(tmp_path / "a", tmp_path / "b")
    assert result.causes[0].startswith("gradients are rounded to bfloat16 in run B"), str(result)
