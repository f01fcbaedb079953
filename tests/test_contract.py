"""A contract is met by a port that computes what torch does; else the answer has the edit that mends it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from jaxpar._cli.main import cli

TORCH_SIDE = """
import collections
import torch

torch.manual_seed(0)
torch_module = torch.nn.Sequential(
    collections.OrderedDict(fc=torch.nn.Linear(6, 8), norm=torch.nn.LayerNorm(8), act=torch.nn.GELU(),
    out=torch.nn.Linear(8, 3))
)
inputs = torch.randn(4, 6)
"""

PORT = """
from flax import nnx


class Port(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.fc = nnx.Linear(6, 8, rngs=rngs)
        self.norm = nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs)
        self.out = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.gelu(self.norm(self.fc(x)), approximate=False))


flax_module = Port
"""
KERAS_PORT = """
import keras


class Port(keras.Model):
    def __init__(self):
        super().__init__()
        self.fc = keras.layers.Dense(8)
        self.norm = keras.layers.LayerNormalization(epsilon=1e-5)
        self.out = keras.layers.Dense(3)

    def call(self, x):
        return self.out(keras.activations.gelu(self.norm(self.fc(x)), approximate=False))


def flax_module():
    model = Port()
    model(keras.ops.zeros((1, 6)))
    return model
"""
KERAS_BUGS = {
    "epsilon": [("epsilon=1e-5", "epsilon=1e-4")],
    "a_default": [("epsilon=1e-5", "")],
    "gelu": [("approximate=False", "approximate=True")],
}
BUGS = {
    "epsilon": [("epsilon=1e-5", "epsilon=1e-3")],
    "a_default": [("epsilon=1e-5, ", "")],
    "gelu": [("approximate=False", "approximate=True")],
    "two_bugs": [("epsilon=1e-5", "epsilon=1e-3"), ("approximate=False", "approximate=True")],
}


@pytest.fixture(scope="module")
def contract(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    (folder / "torch_side.py").write_text(TORCH_SIDE)
    made = CliRunner().invoke(
        cli, ["contract", "make", str(folder / "torch_side.py"), str(folder / "contract")]
    )
    assert made.exit_code == 0, made.output
    return folder / "contract"


def check(contract: Path, port: Path, *options: str) -> tuple[int, dict]:
    result = CliRunner().invoke(cli, ["contract", "check", str(contract), str(port), *options])
    return result.exit_code, json.loads(result.stdout)


def written(folder: Path, changes=(), source=PORT) -> Path:
    for before, after in changes:
        assert before in source
        source = source.replace(before, after)
    (folder / "port.py").write_text(source)
    return folder / "port.py"


def test_a_contract_names_what_a_port_must_define(contract):
    content = json.loads((contract / "contract.json").read_text())
    assert (content["format"], content["version"]) == ("jaxpar contract", 1)
    assert content["entry_points"]["needed"] == ["flax_module"]
    assert content["inputs"] == {"0": {"shape": [4, 6], "dtype": "float32"}}
    assert content["layers"] == ["fc", "norm", "act", "out"]
    assert content["weights"]["fc.weight"]["shape"] == [8, 6]
    assert "flax_module" in (contract / "port.py").read_text()


def test_a_right_port_meets_it(contract, tmp_path):
    code, answer = check(contract, written(tmp_path))
    assert (code, answer["met"], answer["verdict"]) == (0, True, "same")
    assert answer["cause"] is answer["edit"] is answer["error"] is answer["place"] is None
    assert answer["tensors"]["compared"] > 5


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_the_edits_of_the_answers_mend_a_port(contract, tmp_path, bug):
    mend(contract, tmp_path, PORT, BUGS[bug])


@pytest.mark.slow
@pytest.mark.sampled(7)
@pytest.mark.parametrize("bug", KERAS_BUGS)
def test_the_edits_of_the_answers_mend_a_keras_model(contract, tmp_path, bug):
    mend(contract, tmp_path, KERAS_PORT, KERAS_BUGS[bug])


def test_a_keras_model_meets_a_contract_once_it_has_variables(contract, tmp_path):
    code, answer = check(contract, written(tmp_path, source=KERAS_PORT))
    assert (code, answer["met"], answer["verdict"]) == (0, True, "same")
    unbuilt = written(tmp_path, [("model(keras.ops.zeros((1, 6)))", "pass")], KERAS_PORT)
    code, answer = check(contract, unbuilt)
    assert (code, answer["met"]) == (2, None)
    assert "Call it once with an input" in answer["error"]["text"]


def mend(contract, tmp_path, source, changes):
    """Apply the edit of each answer, until the port has none of the changes."""
    port = written(tmp_path, changes, source)
    for _ in range(len(changes)):
        code, answer = check(contract, port)
        assert (code, answer["met"]) == (1, False)
        assert answer["place"]["sentence"]
        assert answer["cause"]["proven"] is True
        # As the page for agents says; git applies what `patch -p1` does.
        patch = subprocess.run(
            ["git", "apply", "-"], input=answer["edit"]["diff"], cwd=tmp_path, text=True, capture_output=True
        )
        assert patch.returncode == 0, patch.stderr
    code, answer = check(contract, port)
    assert (code, answer["met"]) == (0, True)


@pytest.mark.full
def test_what_no_edit_mends_is_a_guess_at_most(contract, tmp_path):
    port = written(
        tmp_path, [("self.out(nnx.gelu(", "self.out(0.37 + nnx.tanh(nnx.gelu("), ("=False))", "=False)))")]
    )
    code, answer = check(contract, port, "--seconds", "5")
    assert (code, answer["met"], answer["edit"]) == (1, False, None)
    assert answer["place"]["jax"] == "out"
    assert answer["cause"] is None or answer["cause"]["proven"] is False


@pytest.mark.slow
def test_the_reproduction_shows_the_difference(contract, tmp_path):
    _, answer = check(contract, written(tmp_path, BUGS["epsilon"]))
    ended = subprocess.run([sys.executable, answer["reproduction"]], capture_output=True, text=True)
    assert ended.returncode == 1, ended.stderr
    assert "norm" in Path(answer["reproduction"]).read_text().splitlines()[0]


def edited_trace(contract: Path) -> Path:
    path = next(path for path in (contract / "trace").iterdir() if path.suffix == ".json")
    path.write_text(path.read_text().replace('"steps": 1', '"steps": 2', 1))
    return path


def without_contract(contract: Path) -> Path:
    (contract / "contract.json").write_text("{}")
    return contract


def another_version(contract: Path) -> Path:
    path = contract / "contract.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))
    return path


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (edited_trace, "trace"),
        (without_contract, "it is no contract"),
        (another_version, "it is of version 2"),
    ],
)
def test_a_changed_contract_gives_no_verdict(contract, tmp_path, damage, text):
    shutil.copytree(contract, tmp_path / "contract")
    damage(tmp_path / "contract")
    code, answer = check(tmp_path / "contract", written(tmp_path))
    assert (code, answer["met"], answer["verdict"]) == (2, None, None)
    assert text in answer["error"]["text"]


@pytest.mark.parametrize(
    ("source", "kind", "text", "line"),
    [
        ("flax_module = undefined_name", "NameError", "undefined_name", 1),
        ("x = 1", "FileError", "it does not define flax_module", None),
        ("import sys\nsys.exit(0)", "SystemExit", "0", 2),
    ],
)
def test_a_port_that_does_not_run_gives_no_verdict(contract, tmp_path, source, kind, text, line):
    port = tmp_path / "port.py"
    port.write_text(source)
    code, answer = check(contract, port)
    assert (code, answer["met"]) == (2, None)
    assert (answer["error"]["type"], answer["error"]["line"]) == (kind, line)
    assert text in answer["error"]["text"]


def test_a_contract_is_not_overwritten(contract):
    side = contract.parent / "torch_side.py"
    again = CliRunner().invoke(cli, ["contract", "make", str(side), str(contract)])
    assert again.exit_code == 2
    assert "it exists" in again.output


def test_the_page_for_agents_names_the_commands():
    page = CliRunner().invoke(cli, ["skill"]).stdout
    assert "jaxpar contract check" in page
    assert "Exit code 0: met" in page
