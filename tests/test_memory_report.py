"""memory_report: bytes against bytes counted by hand."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import jaxpar
from jaxpar._tools.estimate import MemoryReport, memory_report
from jaxpar._tools.estimate.memory import PARTS, unit_of

F32 = 4
PARAMETERS = F32 * (5 * 6 + 6 + 6 + 6)
"""Of `Net`: kernel, bias, scale, bias."""
BUFFERS = F32 * (6 + 6)
"""Mean and variance."""
ADAM = 2 * PARAMETERS + 4
"""Two moments and a count."""
ROW = F32 * 6
"""Of the outputs."""


class Net(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(5, 6, rngs=rngs)
        self.norm = nnx.BatchNorm(6, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.linear(x))


class Words(nnx.Module):
    """Integers in and out, random numbers, a dict, an argument that is no array."""

    def __init__(self, rngs):
        self.embedding = nnx.Embed(7, 6, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, tokens, scale):
        x = self.dropout(self.embedding(tokens)) * scale
        return {"scores": x, "best": x.argmax(-1)}


def rows(b: int) -> np.ndarray:
    return np.ones((b, 5), np.float32)


def column(held, part: str) -> list[int]:
    return [getattr(d, part) for d in held]


@pytest.fixture(scope="module")
def even() -> MemoryReport:
    return memory_report(Net(nnx.Rngs(0)), rows(16), optimizer=optax.adam(1e-3), device_ids=range(4))


@pytest.mark.full
def test_torch_puts_it_on_the_first_device(even):
    assert column(even.torch, "device") == ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]
    assert column(even.torch, "parameters") == [PARAMETERS] * 4
    assert column(even.torch, "buffers") == [BUFFERS] * 4
    assert column(even.torch, "optimizer") == [ADAM, 0, 0, 0]
    assert column(even.torch, "gradients") == [2 * PARAMETERS] + [PARAMETERS] * 3
    assert column(even.torch, "outputs") == [(4 + 16) * ROW] + [4 * ROW] * 3
    first, *others = column(even.torch, "activations")
    assert first >= 16 * ROW  # the gradient of all outputs
    assert min(others) >= 4 * ROW
    totals = column(even.torch, "total")
    assert totals[0] > 1.5 * max(totals[1:])


def test_jaxpar_puts_it_everywhere_alike(even):
    assert column(even.jaxpar, "parameters") == [PARAMETERS] * 4
    assert column(even.jaxpar, "buffers") == [BUFFERS] * 4
    assert column(even.jaxpar, "optimizer") == [ADAM] * 4
    assert column(even.jaxpar, "gradients") == [PARAMETERS] * 4
    assert column(even.jaxpar, "outputs") == [4 * ROW] * 4
    assert len(set(column(even.jaxpar, "total"))) == 1
    assert even.compiled_step >= PARAMETERS + BUFFERS + ADAM


@pytest.mark.full
def test_the_first_device_grows_with_the_batch_under_torch_and_not_under_jaxpar(even):
    larger = memory_report(Net(nnx.Rngs(0)), rows(160), optimizer=optax.adam(1e-3), device_ids=range(4))
    assert larger.torch[0].outputs - even.torch[0].outputs == (36 + 144) * ROW
    assert larger.jaxpar[0].outputs - even.jaxpar[0].outputs == 36 * ROW


@pytest.mark.full
def test_uneven_rows():
    report = memory_report(Net(nnx.Rngs(0)), rows(10), device_ids=range(4))
    assert report.sizes == (3, 3, 3, 1)
    assert column(report.torch, "outputs") == [(3 + 10) * ROW, 3 * ROW, 3 * ROW, ROW]
    assert column(report.torch, "optimizer") == column(report.jaxpar, "optimizer") == [0] * 4
    assert len(set(column(report.jaxpar, "total"))) == 1
    assert "(3+3+3+1)" in report.table()


@pytest.mark.full
def test_devices_that_get_no_rows():
    report = memory_report(Net(nnx.Rngs(0)), rows(2), device_ids=range(4))
    assert report.sizes == (1, 1)
    assert column(report.torch, "total")[2:] == [0, 0]
    assert column(report.jaxpar, "parameters") == [PARAMETERS] * 4


@pytest.mark.full
def test_one_device():
    report = memory_report(Net(nnx.Rngs(0)), rows(4), device_ids=[0])
    for held in (report.torch[0], report.jaxpar[0]):
        assert (held.gradients, held.outputs) == (PARAMETERS, 4 * ROW)
    assert "one device" in report.table()


@pytest.mark.full
def test_integers_random_numbers_and_what_is_no_array():
    report = memory_report(
        Words(nnx.Rngs(0)),
        (jax.ShapeDtypeStruct((8, 3), jnp.int32), 2.0),
        lambda outputs: outputs["scores"].sum(),
        optimizer=optax.sgd(0.1, momentum=0.9),
        device_ids=range(2),
    )
    embedding, best = 7 * 6 * F32, np.dtype(jnp.zeros(1, int).dtype).itemsize
    assert column(report.torch, "parameters") == [embedding] * 2
    assert column(report.torch, "optimizer") == [embedding, 0]
    assert column(report.jaxpar, "outputs") == [4 * 3 * (6 * F32 + best)] * 2
    assert column(report.torch, "outputs") == [(4 + 8) * 3 * (6 * F32 + best), 4 * 3 * (6 * F32 + best)]


@pytest.mark.full
def test_nothing_is_moved_and_a_wrapper_brings_its_devices(even):
    plain = Net(nnx.Rngs(0))
    home = plain.linear.kernel.get_value().sharding
    memory_report(plain, rows(8), device_ids=range(2))
    assert plain.linear.kernel.get_value().sharding == home

    net = jaxpar.DataParallel(plain, device_ids=range(4))
    optimizer = nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)
    assert memory_report(net, rows(16), optimizer=optimizer) == even


def test_a_module_without_values(even):
    net = nnx.eval_shape(lambda: Net(nnx.Rngs(0)))
    assert memory_report(net, rows(16), optimizer=optax.adam(1e-3), device_ids=range(4)) == even


def test_table(even):
    said = even.table()
    assert max(map(len, said.splitlines())) <= 110
    for expected in (
        *PARTS,
        "Net, 16 rows on 4 devices (4 each), compiled for cpu",
        "torch.nn.DataParallel, KiB",
        "jaxpar.DataParallel inside jax.jit, KiB",
        "all devices hold the same",
        "XLA's temporary bytes",
        "not all are there at the same instant",
    ):
        assert expected in said
    ratio = even.torch[0].total / even.torch[1].total
    assert f"cpu:0 holds {ratio:.1f} x what the fullest other one does" in said


def test_as_dict(even):
    found = json.loads(json.dumps(even.as_dict()))
    assert found["torch"][0]["optimizer"] == ADAM
    assert (
        found["jaxpar"][3]["total"] == even.jaxpar[3].total == sum(column(even.jaxpar, p)[3] for p in PARTS)
    )
    assert found["unit"] == "bytes"
    assert set(found["sources"]) == {"torch", "jaxpar", "both"}


def test_plot_writes_a_picture(even, tmp_path):
    pytest.importorskip("matplotlib")
    even.plot(tmp_path / "memory.png")
    content = (tmp_path / "memory.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(content[16:20], "big") > 1000  # pixels across


def test_the_picture_has_a_panel_for_each_pattern_side_by_side(even, monkeypatch):
    pytest.importorskip("matplotlib")
    pictures = []
    monkeypatch.setattr("jaxpar._tools.estimate.memory.save", lambda picture, _: pictures.append(picture))
    even.plot("unused.png")
    left, right = pictures[0].axes
    assert (left.get_ylabel(), right.get_ylabel()) == ("memory at its largest [KiB]", "")
    assert left.get_position().x1 < right.get_position().x0


def test_plot_without_matplotlib_names_the_extra(even, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxpar\[report\]'"):
        even.plot(tmp_path / "memory.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("count", "unit"), [(0, "B"), (1023, "B"), (1024, "KiB"), (2**20, "MiB"), (2**40, "GiB")]
)
def test_units(count, unit):
    assert unit_of(count)[0] == unit


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"module": linen.Dense(3)}, TypeError, "must be an nnx.Module, not a Dense; Linen modules"),
        ({"module": jnp.sin}, TypeError, "must be an nnx.Module"),
        ({"loss_fn": lambda y: y.sum(1)}, TypeError, r"must return a scalar and returned shape \(8,\)"),
        ({"loss_fn": lambda y: None}, TypeError, r"must return a scalar and returned None"),
        ({"optimizer": "adam"}, TypeError, "must be an optax transformation .* not a str"),
        ({"inputs": (3, "x")}, jaxpar.errors.NoRowsError, "inputs hold no array"),
        ({"inputs": None}, jaxpar.errors.NoRowsError, "inputs hold no array"),
        ({"inputs": np.array(1.0)}, jaxpar.errors.NoRowsError, "has no axes"),
        ({"device_ids": [0, 99]}, jaxpar.errors.DeviceError, "device id 99 is out of range"),
    ],
)
def test_misuse(change, error, message):
    arguments = {"module": Net(nnx.Rngs(0)), "inputs": rows(8), "device_ids": range(2)} | change
    with pytest.raises(error, match=message):
        memory_report(**arguments)


def test_siblings_with_different_rows():
    class Two(nnx.Module):
        def __call__(self, x, y):
            return x + y

    with pytest.raises(jaxpar.errors.RowsError, match=r"8 rows and .* has 7"):
        memory_report(Two(), (rows(8), rows(7)), device_ids=range(2))


def test_one_cpu_device_is_nothing_to_compare(monkeypatch):
    monkeypatch.setattr(jaxpar._devices.devices, "device_count", lambda: 0)
    with pytest.raises(jaxpar.errors.DeviceError, match=r"see jaxpar\.virtual_devices"):
        memory_report(Net(nnx.Rngs(0)), rows(8))


def test_a_compiler_that_does_not_tell(monkeypatch):
    monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", lambda self: None)
    with pytest.raises(jaxpar.errors.BackendError, match="does not analyse memory"):
        memory_report(Net(nnx.Rngs(0)), rows(8), device_ids=range(2))


class Masked(nnx.Module):
    """Of arguments without rows, which come first: a table and a key."""

    def __init__(self, rngs):
        self.linear = nnx.Linear(5, 6, rngs=rngs)

    def __call__(self, table, key, x):
        return self.linear(x) @ table + jax.random.normal(key, (6,), x.dtype)


@pytest.mark.full
def test_marked_arguments_and_keys_are_complete_on_every_device():
    table = jaxpar.replicated(np.ones((6, 6), np.float32))
    args = (table, jax.random.key(0), rows(10))
    report = memory_report(Masked(nnx.Rngs(0)), args, device_ids=range(4))
    assert report.sizes == (3, 3, 3, 1)
    assert column(report.torch, "outputs") == [ROW * (3 + 10), ROW * 3, ROW * 3, ROW]
    assert column(report.jaxpar, "outputs") == [ROW * 10] * 4  # uneven outputs are complete everywhere
    with pytest.raises(jaxpar.errors.NoRowsError):
        memory_report(Masked(nnx.Rngs(0)), (table,), device_ids=range(4))
