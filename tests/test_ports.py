"""examples/ports: a torch script and its port give the same numbers, in float64 over an epoch."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

PORTS = Path(__file__).resolve().parents[1] / "examples" / "ports"
README = (PORTS / "README.md").read_text()
MOST = 1e-11
"""What a number or a weight may differ by, relative to its size. Healthy ones differ by 1e-12 and less."""


def load(name):
    spec = importlib.util.spec_from_file_location(f"ports_{name}", PORTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where NamedTuple looks
    spec.loader.exec_module(module)
    return module


ports = load("compare")


def test_the_readme_names_every_port():
    rows = re.findall(r"^\| \[(\w+)\.py\]", README, re.M)
    assert rows == list(ports.PORTS)
    assert all((PORTS / f"{name}{side}.py").exists() for name in rows for side in ("", "_torch"))


@pytest.mark.parametrize("name", ports.PORTS)
def test_the_readme_counts_the_lines_that_change(name):
    old, new = (ports.code(PORTS / f"{name}{side}.py") for side in ("_torch", ""))
    (said,) = re.findall(rf"^\| \[{name}\.py\].*?\| (\d+ of \d+) \(", README, re.M)
    assert said == f"{ports.changed_lines(old, new)} of {len(old)}"


def test_imagenet_changes_at_most_120_lines():
    old, new = (ports.code(PORTS / f"imagenet{side}.py") for side in ("_torch", ""))
    assert ports.changed_lines(old, new) <= 120


@pytest.mark.parametrize(
    ("new", "changed"),
    [("abcd", 0), ("abxd", 1), ("abd", 1), ("abcde", 0), ("xyz", 4), ("", 4)],
)
def test_lines_that_change_are_changed_or_gone(new, changed):
    assert ports.changed_lines(list("abcd"), list(new)) == changed


@pytest.mark.long
@pytest.mark.parametrize("name", ports.PORTS)
def test_a_port_gives_torchs_numbers(name, tmp_path):
    found = ports.compare(name, tmp_path)
    assert found.numbers > 10 or name in ("imagenet", "ddp_tutorial")
    assert found.difference <= MOST
    assert found.weights <= MOST


@pytest.mark.long
def test_imagenet_goes_on_where_it_was_as_torchs_does(tmp_path):
    arguments = "{images} --size 32 --width 4 -b 64 --lr 0.01 --dtype float64"
    load("data").write_image_folder(tmp_path / "images", 128, 40)
    numbers = {}
    for module, saved in (("imagenet_torch", "checkpoint.pt"), ("imagenet", "checkpoints")):
        out = tmp_path / module
        out.mkdir()
        given = [*arguments.format(images=tmp_path / "images").split(), "--out", str(out)]
        first = ports.run_side(module, out, [*given, "--epochs", "1"])["numbers"]
        second = ports.run_side(module, out, [*given, "--epochs", "2", "--resume", str(out / saved)])
        assert len(second["numbers"]) == len(first)  # one epoch, and not the first one again
        numbers[module] = np.array(second["numbers"])
    assert ports.relative(numbers["imagenet"], numbers["imagenet_torch"]) <= MOST


@pytest.mark.long
def test_another_learning_rate_is_seen(tmp_path, monkeypatch):
    """Planted: torch's side and ours are given different rates."""
    rates = iter(["1.0", "1.000001"])
    run_side = ports.run_side
    monkeypatch.setattr(
        ports,
        "run_side",
        lambda module, folder, given, n: run_side(module, folder, [*given, "--lr", next(rates)], n),
    )
    found = ports.compare("mnist", tmp_path)
    assert found.difference > 1e4 * MOST
    assert found.weights > 1e4 * MOST
