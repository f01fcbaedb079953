"""Traces: recorded without JAX, judged without torch, with the verdict, place and causes of `compare`."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jaxpar import parity
from jaxpar.errors import FileError
from jaxpar.parity import recorder
from jaxpar.parity._files.sealing import seal

torch = pytest.importorskip("torch")

X = np.random.RandomState(0).randn(5, 4)

TORCH = """
import numpy as np, torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm, self.out = torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)
        self.batch, self.drop = torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.25)

    def forward(self, x):
        y = torch.nn.functional.gelu(self.norm(self.fc(x)))
        return self.out(self.drop(self.batch(y + self.fc(x))))

torch.manual_seed(0)
torch_module = Net()
inputs = np.random.RandomState(0).randn(5, 4)
targets = np.array([0, 1, 2, 0, 1])
loss = torch.nn.functional.cross_entropy
optimizer = lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9)
"""

FLAX = """
import optax
from flax import nnx
import jaxpar


class Net(nnx.Module):
    def __init__(self, epsilon=1e-5, approximate=False, momentum=0.1, residual=True):
        rngs = nnx.Rngs(0)
        self.fc, self.out = nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)
        self.norm = nnx.LayerNorm(8, epsilon=epsilon, use_fast_variance=False, rngs=rngs)
        self.batch, self.drop = jaxpar.nn.BatchNorm(8, momentum=momentum), nnx.Dropout(0.25, rngs=rngs)
        self.approximate, self.residual = approximate, residual

    def __call__(self, x):
        y = nnx.gelu(self.norm(self.fc(x)), approximate=self.approximate)
        return self.out(self.drop(self.batch(y + self.fc(x) if self.residual else y)))

def loss(y, labels):
    return optax.softmax_cross_entropy_with_integer_labels(y, labels).mean()

def summed(y, labels):
    return optax.softmax_cross_entropy_with_integer_labels(y, labels).sum()

flax_module = Net()
optimizer = optax.sgd(0.1, momentum=0.9)
"""


def defined(source):
    names = {"__name__": "side"}
    exec(source, names)
    return names


T, F = defined(TORCH), defined(FLAX)

TANH = "approximate=False (it acts as gelu(approximate=True))"
SLOWER = optax.sgd(0.1, momentum=0.5)

CASES = {
    "healthy": ({}, {}, None),
    "epsilon": ({"epsilon": 1e-6}, {}, ("norm", "epsilon=1e-05 (it acts as 1e-06)")),
    "approximate": (
        {"approximate": True},
        {},
        ("batch", TANH),
    ),
    "momentum": ({"momentum": 0.9}, {}, ("batch", "momentum=0.1")),
    "residual": ({"residual": False}, {}, ("batch", "left out")),
    "loss": ({}, {"loss": F["summed"]}, ("loss", "reduction")),
    "optimizer": (
        {},
        {"optimizer": SLOWER},
        ("optimizer", "momentum=0.9 (it acts as 0.5)"),
    ),
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    options = {name: T[name] for name in ("targets", "loss", "optimizer")}
    return recorder.record(tmp_path_factory.mktemp("trace"), T["torch_module"], T["inputs"], **options)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_trace_gives_the_verdict_the_place_and_the_cause_of_compare(trace, name):
    options, changes, expected = CASES[name]
    halves = {"loss": F["loss"], "optimizer": F["optimizer"], **changes}
    pairs = {half: (T[half], halves[half]) for half in halves}
    compared = parity.compare(
        T["torch_module"], F["Net"](**options), T["inputs"], targets=T["targets"], **pairs
    )
    judged = parity.against(trace, F["Net"](**options), **halves)
    assert judged.same == compared.same == (expected is None)
    assert [row.difference.name for row in judged.rows] == [row.difference.name for row in compared.rows]
    assert judged.constants == compared.constants
    if expected:
        place, cause = expected
        for comparison in (judged, compared):
            assert comparison.divergence.candidate == place
            assert cause in comparison.divergence.causes[0].text
        texts = [[c.text for c in one.divergence.causes] for one in (judged, compared)]
        assert texts[0] == texts[1]


class Table(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)
        self.register_buffer("table", torch.arange(4) / 3, persistent=False)

    def forward(self, x):
        return self.fc(x + self.table)


class Computed(nnx.Module):
    def __init__(self, scale=1.0):
        self.fc, self.scale = nnx.Linear(4, 2, rngs=nnx.Rngs(0)), scale

    def __call__(self, x):
        return self.fc(x + self.scale * jax.numpy.arange(4) / 3)


class Images(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Linear(4 * 4 * 4, 2)

    def forward(self, x):
        return {"scores": self.head(torch.relu(self.conv(x)).flatten(1))}


class FlaxImages(nnx.Module):
    def __init__(self, order=(0, 3, 1, 2)):
        self.conv, self.head = nnx.Conv(3, 4, (3, 3), rngs=nnx.Rngs(0)), nnx.Linear(64, 2, rngs=nnx.Rngs(0))
        self.order = order

    def __call__(self, x):
        return {"scores": self.head(nnx.relu(self.conv(x)).transpose(self.order).reshape(len(x), -1))}


IMAGES = np.random.RandomState(0).randn(2, 3, 4, 4)


@pytest.mark.full
@pytest.mark.parametrize(
    ("module", "flax_module", "x", "options", "same", "cause"),
    [
        (Table, Computed(), X, {}, True, ""),  # up to what float32 does to the table
        (Table, Computed(1 + 1e-5), X, {}, False, ""),
        (Images, FlaxImages(), IMAGES, {"layout": "channels_last"}, True, ""),
        (Images, FlaxImages((0, 1, 2, 3)), IMAGES, {"layout": "channels_last"}, False, "(C, *S)"),
        (torch.nn.functional.gelu, jax.nn.gelu, X, {}, False, "acts as gelu(approximate=True)"),
        (torch.nn.functional.relu, jax.nn.relu, X, {}, True, ""),
    ],
)
def test_what_else_a_trace_holds(tmp_path, module, flax_module, x, options, same, cause):
    torch.manual_seed(0)
    trace = recorder.record(tmp_path / "trace", module() if isinstance(module, type) else module, x)
    judged = parity.against(trace, flax_module, **options)
    assert judged.same == same, judged
    assert bool(judged.constants) == (module is Table and same)
    assert not cause or cause in judged.divergence.causes[0].text


@pytest.mark.full
def test_a_trace_is_asked_for_what_it_was_recorded_with(trace):
    with pytest.raises(ValueError, match="recorded with loss"):
        parity.against(trace, F["Net"](), optimizer=F["optimizer"])
    with pytest.raises(ValueError, match="outputs=None"):
        parity.against(trace, F["Net"](), loss=F["loss"], optimizer=F["optimizer"], outputs=["logits"])


# ------------------------------------------------------------------------------------------- two environments

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
BLOCKED = "import sys\nfor name in {names!r}: sys.modules[name] = None\n"
RECORDS = (
    "import runpy\nsys.argv = ['recorder.py', 'side.py', 'trace']\n"
    "runpy.run_path('recorder.py', run_name='__main__')\n"
)
JUDGES = (
    "sys.argv = ['jaxpar', 'parity', 'spec.py', '--against', 'trace', '--json']\n"
    "from jaxpar._cli.main import main\nmain()\n"
)


def python(folder, blocked, program):
    text = BLOCKED.format(names=blocked) + program
    return subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_one_file_records_without_jax_and_the_command_judges_without_torch(tmp_path):
    recorder.main(["--copy", str(tmp_path / "recorder.py")])
    (tmp_path / "side.py").write_text(TORCH)
    blocked = ("jaxpar", "jax", "jaxlib", "flax", "optax", "ml_dtypes", "safetensors", "lazy_loader")
    recorded = python(tmp_path, blocked, RECORDS)
    assert recorded.returncode == 0, recorded.stderr
    for change, code in (("", 0), ("flax_module = Net(approximate=True)", 1)):
        (tmp_path / "spec.py").write_text(f"{FLAX}\n{change}\n")
        judged = python(tmp_path, ("torch",), JUDGES)
        assert judged.returncode == code, judged.stderr
        divergence = json.loads(judged.stdout)["divergence"]
        assert (divergence is None) == (code == 0)
    assert divergence["candidate"] == "batch"
    assert divergence["causes"][0]["text"] == TANH


def test_the_packed_file_asks_for_torch_and_numpy_alone():
    allowed = {*sys.stdlib_module_names, "torch", "numpy", "jaxpar_recorder"}
    names = recorder.load()
    for name, text in names.SOURCES.items():
        for line in text.splitlines():
            words = [] if line.startswith(" ") else line.split()  # not what a function imports on demand
            if words[:1] in (["import"], ["from"]) and not words[1].startswith("."):
                assert words[1].partition(".")[0] in allowed, f"{name}: {line}"


# -------------------------------------------------------------------------------------------- hostile traces


class Harm:
    def __reduce__(self):
        return (exec, ("raise SystemExit('executed')",))


def resealed(folder, **fields):
    path = folder / "trace.json"
    manifest = json.loads(path.read_text()) | fields
    manifest["seal"] = seal(manifest)
    path.write_text(json.dumps(manifest))


def arrays_of(folder):
    return json.loads((folder / "trace.json").read_text())["arrays"]


def huge_header(folder):
    (folder / "arrays.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    digest_anew(folder)


def digest_anew(folder):
    from jaxpar.parity._files.sealing import digest

    resealed(folder, sha256=digest(folder / "arrays.safetensors"))


def header_with(**entry):
    def change(folder):
        path = folder / "arrays.safetensors"
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        header["a0"] |= entry
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
        digest_anew(folder)

    return change


def pickled(name):
    return lambda folder: (folder / name).write_bytes(pickle.dumps(Harm()))


def sealed_pickle(folder):
    pickled("arrays.safetensors")(folder)
    digest_anew(folder)


def truncated(name):
    def change(folder):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return change


def linked(folder):
    (folder / "arrays.safetensors").rename(folder / "elsewhere")
    (folder / "arrays.safetensors").symlink_to(folder / "elsewhere")


def edited(folder):
    path = folder / "trace.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))


HOSTILE = {
    "no folder": (lambda folder: (folder / "trace.json").unlink(), "trace.json: it is missing"),
    "link": (linked, "arrays.safetensors: it is missing, or no plain file"),
    "truncated arrays": (truncated("arrays.safetensors"), "arrays.safetensors: it is not the file"),
    "truncated manifest": (truncated("trace.json"), "trace.json: it cannot be read"),
    "pickle for arrays": (pickled("arrays.safetensors"), "arrays.safetensors: it is not the file"),
    "pickle for the manifest": (pickled("trace.json"), "trace.json: it cannot be read"),
    "pickle with a digest": (
        lambda f: (pickled("arrays.safetensors")(f), digest_anew(f)),
        "arrays.safetensors",
    ),
    "edited": (edited, "trace.json: it was changed after"),
    "deep": (lambda f: (f / "trace.json").write_text("[" * 200_000), "trace.json: it cannot be read"),
    "version": (lambda f: resealed(f, version=99), "of version 99"),
    "format": (lambda f: resealed(f, format="jaxpar parity record"), "no trace"),
    "a flag for a number": (lambda f: resealed(f, steps=True), "its steps is bool"),
    "too many steps": (lambda f: resealed(f, steps=1000), "it has 1000 steps"),
    "negative steps": (lambda f: resealed(f, steps=-1), "it has -1 steps"),
    "huge header": (huge_header, "announce a header of 4611686018427387904 bytes"),
    "NaN for a shape": (header_with(shape=[float("nan")]), "damaged"),
    "a negative shape": (header_with(shape=[-1]), "damaged"),
    "offsets beyond the end": (header_with(data_offsets=[0, 1 << 50]), "damaged"),
    "a path for a name": (
        lambda f: resealed(f, arrays=arrays_of(f) | {"start/../../x": "../../etc/passwd"}),
        "it names '../../etc/passwd', which is not in",
    ),
    "no name": (lambda f: resealed(f, arrays=arrays_of(f) | {"start/x": 7}), "it names 7"),
    "layers of nothing": (lambda f: resealed(f, layers=[{"path": "fc"}]), "its layers make no sense"),
    "calls of nothing": (lambda f: resealed(f, calls=[1, 2]), "its calls make no sense"),
    "modules of nothing": (lambda f: resealed(f, modules=[None]), "its modules make no sense"),
    "probes of nothing": (
        lambda f: resealed(f, probes={"asked": [], "sites": []}),
        "its probes make no sense",
    ),
    "a noise floor of words": (lambda f: resealed(f, lost_digits=[["x"], []]), "its noise floor make"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_trace_is_refused_with_path_and_reason(trace, tmp_path, name):
    change, message = HOSTILE[name]
    for file in ("trace.json", "arrays.safetensors"):
        (tmp_path / file).write_bytes((trace / file).read_bytes())
    change(tmp_path)
    # Wrong in one place, so that whatever is read only for a search is read, too.
    wrong = F["Net"](epsilon=1e-3)
    with pytest.raises(FileError) as refused:
        parity.against(tmp_path, wrong, loss=F["loss"], optimizer=F["optimizer"])
    assert message in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_the_copy_of_a_trace_that_nobody_changed_is_read(trace, tmp_path):
    """Planted fault of the table above: a change that changes nothing is no reason."""
    for file in ("trace.json", "arrays.safetensors"):
        (tmp_path / file).write_bytes((trace / file).read_bytes())
    resealed(tmp_path)
    assert parity.against(tmp_path, F["Net"](), loss=F["loss"], optimizer=F["optimizer"]).same


def test_two_layers_exchanged_in_the_trace_are_seen(trace, tmp_path):
    """Planted fault: an array of torch under the name of another of its shape."""
    names = arrays_of(trace)
    for file in ("trace.json", "arrays.safetensors"):
        (tmp_path / file).write_bytes((trace / file).read_bytes())
    resealed(tmp_path, arrays=names | {"1/gradients/norm.weight": names["1/gradients/norm.bias"]})
    judged = parity.against(tmp_path, F["Net"](), loss=F["loss"], optimizer=F["optimizer"])
    assert [row.difference.name for row in judged.different] == ["norm.scale"]
