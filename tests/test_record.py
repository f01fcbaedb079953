"""parity.record and parity.check: what torch computed is enough, and a damaged record is refused."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxpar
from jaxpar import parity
from jaxpar.errors import FileError, MatchError, ParityError

torch = pytest.importorskip("torch")

X = np.random.RandomState(0).randn(6, 2, 5, 5)
SGD = (lambda p: torch.optim.SGD(p, 0.1, 0.9), optax.sgd(0.1, 0.9))
SQUARE = (lambda y, t: ((y - t) ** 2).mean(), lambda y, t: ((y - t) ** 2).mean())


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3)
        self.drop, self.fc = torch.nn.Dropout(0.5), torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(self.drop(torch.tanh(self.bn(self.conv(x)))).mean((2, 3)))


class Flax(nnx.Module):
    def __init__(self, eps=1e-5, width=2):
        self.conv, self.bn = (
            nnx.Conv(2, 3, (3, 3), padding="VALID", rngs=nnx.Rngs(0)),
            jaxpar.nn.BatchNorm(3, eps=eps),
        )
        self.drop, self.fc = nnx.Dropout(0.5, rngs=nnx.Rngs(0)), nnx.Linear(3, width, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.fc(self.drop(jnp.tanh(self.bn(self.conv(x)))).mean((1, 2)))


@pytest.fixture(autouse=True)
def same_weights_every_time():
    torch.manual_seed(0)


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"steps": 2, "optimizer": SGD, "loss": SQUARE, "targets": np.zeros((6, 2))},
        {"level": "numeric"},
        {"training": False},
    ],
    ids=["projection", "training", "numeric", "evaluation"],
)
def test_a_record_is_what_was_compared(tmp_path, arguments):
    path = tmp_path / "model.safetensors"
    made = parity.record(path, Torch(), Flax(), X, layout="channels_last", **arguments)
    assert made.same
    given = {name: arguments[name][1] for name in ("loss", "optimizer") if name in arguments}
    found = parity.check(path, Flax(), **given)
    assert found.same, str(found)
    key = [(row.difference.kind, row.difference.name, row.difference.step) for row in found.rows]
    assert key == [(row.difference.kind, row.difference.name, row.difference.step) for row in made.rows]
    assert not parity.check(path, Flax(eps=1e-3), **given).same
    assert "torch (record)" in found.environment


@pytest.mark.slow
def test_checking_needs_no_torch(tmp_path):
    parity.record(
        tmp_path / "line.safetensors",
        torch.nn.Linear(3, 2),
        nnx.Linear(3, 2, rngs=nnx.Rngs(0)),
        X[0, 0, :, :3],
    )
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from flax import nnx\nfrom jaxpar import parity\n"
        f"found = parity.check({str(tmp_path / 'line.safetensors')!r}, nnx.Linear(3, 2, rngs=nnx.Rngs(0)))\n"
        "assert found.same, found"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.full
def test_a_grown_ratio_fails_below_the_bound(tmp_path):
    path = tmp_path / "model.safetensors"
    parity.record(path, Torch(), Flax(), X, layout="channels_last", level="numeric")
    beside = path.with_suffix(".json")
    manifest = json.loads(beside.read_text())
    assert all(ratio is None or ratio < 100 for *_, ratio in manifest["ratios"])
    _change(path, policy=manifest["policy"] | {"growth": 0.0})  # as if every ratio had been 0
    found = parity.check(path, Flax())
    assert any("has grown" in row.reason for row in found.different)


@pytest.mark.full
def test_a_difference_is_not_recorded(tmp_path):
    with pytest.raises(ParityError):
        parity.record(tmp_path / "model.safetensors", Torch(), Flax(eps=1e-3), X, layout="channels_last")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    path = tmp_path_factory.mktemp("record") / "line.safetensors"
    parity.record(path, torch.nn.Linear(3, 2), nnx.Linear(3, 2, rngs=nnx.Rngs(0)), X[0, 0, :, :3])
    return path


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: p.unlink(), "is missing, or not the file"),
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), "is missing, or not the file"),
        (lambda p: p.with_suffix(".json").unlink(), "there is no such file"),
        (lambda p: p.with_suffix(".json").write_text("{"), "cannot be read"),
        (lambda p: p.with_suffix(".json").write_text("{}"), "is not a record"),
        (lambda p: p.with_suffix(".json").write_text("[" * 60_000), "cannot be read"),
        (lambda p: p.with_suffix(".json").write_bytes(b"\xff"), "cannot be read"),
        (lambda p: _change(p, version=99), "it is of version 99"),
        (lambda p: _change(p, version=1), "it is of version 1"),
        (lambda p: _change(p, policy=7), "its policy is int, not dict"),
        (lambda p: _change(p, ratios=[["output", "", 1]]), "ratios make no sense"),
        (lambda p: _change(p, steps="2"), "its steps is str, not int"),
        (lambda p: _change(p, level="high"), "make no sense: 'high'"),
        (lambda p: _change(p, steps=None), "steps is missing"),
        (lambda p: _change(p, policy={"relative": 1}), "other bounds"),
    ],
)
def test_a_damaged_record_is_refused(record, tmp_path, damage, message):
    path = _copy(record, tmp_path)
    damage(path)
    with pytest.raises(FileError, match=message):
        parity.check(path, nnx.Linear(3, 2, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize("which", [".json", ".safetensors"])
def test_random_changes_of_bytes_are_found(record, tmp_path, which):
    """Each is named, or says the same as before: a blank of JSON is nothing."""
    path = _copy(record, tmp_path)
    file, chosen = path.with_suffix(which), random.Random(0)
    before = file.read_bytes()
    refused = 0
    for i in range(100):
        changed = bytearray(before)
        at = chosen.randrange(len(before))
        if i % 3 == 0:
            changed[at] = (changed[at] + chosen.randrange(1, 256)) % 256
        elif i % 3 == 1:
            del changed[at : at + chosen.randrange(1, 9)]
        else:
            changed[at:at] = chosen.randbytes(chosen.randrange(1, 9))
        file.write_bytes(changed)
        if which == ".json" and _meaning(bytes(changed)) == _meaning(before):
            continue
        with pytest.raises(FileError):
            parity.check(path, nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
        refused += 1
    assert refused > 80
    file.write_bytes(before)
    assert parity.check(path, nnx.Linear(3, 2, rngs=nnx.Rngs(0))).same


def _meaning(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def _change(path, **fields):
    """Other fields under a seal of their own, as another version might write them."""
    beside = path.with_suffix(".json")
    manifest = json.loads(beside.read_text()) | fields
    manifest = {name: value for name, value in manifest.items() if value is not None and name != "seal"}
    sealed = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    beside.write_text(json.dumps(manifest | {"seal": sealed}))


def _edits():
    """A record's fields, each with another value."""
    looser = {"overrides": [["*", 1.0]]}
    yield "policy", lambda before: before | looser
    yield "policy", lambda before: before | {"relative": 1e-9}
    yield "noise", lambda before: before | {"kernel": "said to be noise"}
    yield "ratios", lambda before: [[*row[:3], 100.0] for row in before]
    yield "level", lambda _: "numeric"
    yield "dtype", lambda _: "float32"
    yield "steps", lambda _: 2
    yield "training", lambda before: not before
    yield "seed", lambda before: before + 1
    yield "subject", lambda before: f"{before}!"
    yield "environment", lambda before: before | {"jax": "0"}


@pytest.mark.parametrize(("field", "edit"), list(_edits()))
def test_a_record_that_was_edited_is_refused(record, tmp_path, field, edit):
    path = _copy(record, tmp_path)
    beside = path.with_suffix(".json")
    manifest = json.loads(beside.read_text())
    beside.write_text(json.dumps(manifest | {field: edit(manifest[field])}))
    with pytest.raises(FileError, match="was changed after"):
        parity.check(path, nnx.Linear(3, 2, rngs=nnx.Rngs(0)))


def test_a_record_may_be_laid_out_in_another_way(record, tmp_path):
    path = _copy(record, tmp_path)
    beside = path.with_suffix(".json")
    beside.write_text(json.dumps(json.loads(beside.read_text()), sort_keys=True, indent=4))
    assert parity.check(path, nnx.Linear(3, 2, rngs=nnx.Rngs(0))).same


def _copy(record, folder):
    for file in (record, record.with_suffix(".json")):
        shutil.copy(file, folder)
    return folder / record.name


def test_misuse(record, tmp_path):
    linear = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    with pytest.raises(MatchError, match=r"kernel \(3, 4\) / \(3, 2\)"):
        parity.check(record, nnx.Linear(3, 4, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match="was made without optimizer"):
        parity.check(record, linear, optimizer=optax.sgd(0.1))
    with pytest.raises(FileError, match="a record ends in"):
        parity.check(tmp_path / "line.npz", linear)
    with pytest.raises(ValueError, match="level='trajectory' has no fixed values"):
        parity.record(
            tmp_path / "a.safetensors", torch.nn.Linear(3, 2), linear, X, level="trajectory", optimizer=SGD
        )
