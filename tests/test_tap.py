"""Tap writes what bisect reads: digests without a layout, ranks, files that survive a kill."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import struct
import subprocess
import sys
import time
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxpar import parity
from jaxpar.errors import FileError
from jaxpar.parity import recorder
from jaxpar.parity._runs import tap_file
from jaxpar.parity._runs.digests import SMALL, layout_free, row_digests, statistics
from jaxpar.parity._runs.run import read_run

RANDOM = np.random.default_rng(0)

# ------------------------------------------------------------------------------------------------- digests

LAYOUTS = {
    "a transposed matrix": ((5, 7), (1, 0)),
    "a kernel": ((3, 3, 4, 6), (3, 2, 0, 1)),
    "a large kernel": ((3, 3, 96, 128), (3, 2, 0, 1)),
    "a square": ((6, 6), (1, 0)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_statistics_do_not_depend_on_the_layout(name):
    shape, axes = LAYOUTS[name]
    x = RANDOM.standard_normal(shape).astype(np.float32)
    one, other = statistics([x, x[:1]], 0)[0], statistics([x.transpose(axes)], 0)[0]
    np.testing.assert_allclose(one[:4], other[:4], rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(one[4:], other[4:])


def test_a_shape_without_its_layout_keeps_the_lengths():
    assert layout_free((3, 1, 4)) == layout_free((4, 3)) == (3, 4)
    assert layout_free((4, 4)) != layout_free((4, 3))


@pytest.mark.parametrize("size", [7, SMALL, 3 * SMALL + 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_statistics_are_numpys(size, dtype):
    x = RANDOM.standard_normal(size).astype(dtype)
    wide = x.astype(np.float64)
    row = statistics([x], 0)[0]
    expected = [np.linalg.norm(wide), wide.mean(), wide.min(), wide.max()]
    np.testing.assert_allclose(row[:4], expected, rtol=1e-5, atol=1e-5)
    assert set(row[5:]) <= set(wide)
    changed = x.copy()
    changed[size // 2] = np.nextafter(changed[size // 2], dtype(9))
    assert statistics([changed], 0)[0][4] != row[4]


def test_rows_have_one_digest_in_all_layouts_and_types():
    images = RANDOM.integers(0, 256, (4, 5, 6, 3)) / 4
    reference = row_digests(images)
    same = [images.astype(np.float32), images.transpose(0, 3, 1, 2), images.reshape(4, 5, 1, 6, 3)]
    for other in same:
        np.testing.assert_array_equal(row_digests(other), reference)
    flipped = row_digests(images[:, ::-1])
    assert (flipped[0] != reference[0]).all()
    np.testing.assert_array_equal(flipped[1], reference[1])
    np.testing.assert_array_equal(row_digests(images[::-1]), reference[:, ::-1])
    np.testing.assert_array_equal(row_digests(-0.0 * images), row_digests(0 * images))
    assert len(np.unique(row_digests(np.arange(1000))[0])) == 1000
    square = RANDOM.integers(0, 256, (4, 6, 6, 3)) / 4
    np.testing.assert_array_equal(row_digests(square.transpose(0, 3, 1, 2)), row_digests(square))
    exchanged = row_digests(square.transpose(0, 2, 1, 3))
    assert (exchanged[0] != row_digests(square)[0]).all()


# --------------------------------------------------------------------------------------------------- trees


def torch_net():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


def test_both_frameworks_are_read_by_name(tmp_path):
    net = torch_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    with parity.Tap(tmp_path / "torch", start=net, full=range(2)) as tap:
        tap(
            0,
            batch=(torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)),
            loss=torch.tensor(1.5),
            rate=[0.1, 0.2],
            gradients=net,
            parameters=net,
            optimizer=optimizer,
            extra=net,
        )
    flax = nnx.Linear(3, 4, rngs=nnx.Rngs(0), param_dtype=jnp.bfloat16)
    with parity.Tap(tmp_path / "jax", start=flax) as tap:
        tap(
            0,
            batch={"x": jnp.ones((2, 3))},
            loss=jnp.ones(()),
            gradients=nnx.state(flax),
            parameters=flax,
            optimizer=(jnp.zeros(()), {"mu": {"kernel": jnp.ones((3, 4))}}),
            extra={"key": jax.random.key(0)},
        )
    step = read_run(tmp_path / "torch").steps[0]
    assert step.parts["parameters"].names == tuple(name for name, _ in net.named_parameters())
    assert "exp_avg_sq.1.bias" in step.parts["optimizer"].names
    assert "1.running_var" in step.parts["extra"].names
    assert (step.loss, step.numbers["rate"]) == (1.5, {"0": 0.1, "1": 0.2})
    np.testing.assert_array_equal(step.full["gradients"]["0.weight"], net[0].weight.grad)
    assert step.batch["1"].full.tolist() == [0, 0]
    jax_step = read_run(tmp_path / "jax").steps[0]
    assert jax_step.parts["parameters"].names == ("bias", "kernel")
    assert jax_step.parts["parameters"].dtypes == ("bfloat16", "bfloat16")
    assert jax_step.parts["optimizer"].names == ("0", "1.mu.kernel")
    assert read_run(tmp_path / "torch").settings["0.bias"]["betas"] == [0.9, 0.999]


REFUSED = {
    "a step that is no integer": (lambda tap: tap("0"), "step is '0'"),
    "text": (lambda tap: tap(0, parameters={"w": "text"}), "parameters.w is str 'text', not an array"),
    "objects": (lambda tap: tap(0, extra=[np.array([None])]), "extra.0 is ndarray"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_array_is_refused_by_its_path(name, tmp_path):
    call, text = REFUSED[name]
    with pytest.raises(TypeError, match=text):
        call(parity.Tap(tmp_path))


# --------------------------------------------------------------------------------------------------- files


def test_calls_of_one_step_add_up_and_a_later_session_replaces(tmp_path):
    tap = parity.Tap(tmp_path)
    tap(0, batch=np.ones((2, 3)), loss=1.0)
    tap(0, batch=np.zeros((1, 3)), loss=2.0)
    tap(0, parameters={"w": np.ones(2)})
    tap(1, loss=5.0)
    tap.close()
    step = read_run(tmp_path).steps[0]
    assert (step.batch[""].digests.shape, step.loss, step.parts["parameters"].names) == ((2, 3), 1.5, ("w",))
    parity.Tap(tmp_path)(1, loss=7.0)
    run = read_run(tmp_path)
    assert [step.loss for step in run.steps.values()] == [1.5, 7.0]


def test_ranks_are_merged_and_missing_ones_are_noted(tmp_path):
    for rank in (0, 2):
        with parity.Tap(tmp_path, rank=rank, world=3) as tap:
            tap(0, batch=np.full((2, 1), rank), loss=float(rank))
    run = read_run(tmp_path)
    assert run.steps[0].loss == 1.0
    assert run.steps[0].batch[""].digests.shape == (2, 4)
    assert any("ranks [1] of 3 are not there" in note for note in run.notes)


def test_an_incomplete_record_is_ignored_noted_and_overwritten(tmp_path):
    with parity.Tap(tmp_path) as tap:
        for step in range(3):
            tap(step, loss=float(step))
    path = tmp_path / "rank-00000.tap"
    data = path.read_bytes()
    _, ends = tap_file.read(path), [end for end, _ in tap_file._payloads(path, data)]
    for size in range(ends[-2] + 1, len(data)):
        path.write_bytes(data[:size])
        run = read_run(tmp_path)
        assert list(run.steps) == [0, 1]
        assert "incomplete and was ignored" in run.notes[0]
    parity.Tap(tmp_path)(2, loss=9.0)
    run = read_run(tmp_path)
    assert (run.steps[2].loss, run.notes) == (9.0, [])
    assert list(run.steps) == [0, 1, 2]


def record(header: bytes, checksum: int | None = None) -> bytes:
    payload = struct.pack("<I", len(header)) + header
    return struct.pack("<II", len(payload), zlib.crc32(payload) if checksum is None else checksum) + payload


def described(**header) -> bytes:
    return record(json.dumps({"arrays": [], **header}).encode())


def loss_of(dtype, length) -> bytes:
    return described(kind="step", step=0, arrays=[["loss/", dtype, [length]]])


OPEN = described(kind="open", rank=0, world=1, seed=0)
HOSTILE = {
    "a pickle": (b"\x80\x04cos\nsystem\n(S'touch taken'\ntR.", "not a file of taps"),
    "a later version": (b"jaxpar.tap 9\n", "not a file of taps"),
    "a wrong checksum before the end": (tap_file.MAGIC + record(b"{}", 5) + OPEN, "another checksum"),
    "no JSON": (tap_file.MAGIC + record(b"{nonsense"), "not readable"),
    "a list": (tap_file.MAGIC + record(b"[]"), "not readable"),
    "deep JSON": (tap_file.MAGIC + record(b"[" * 100_000), "not readable"),
    "an unknown kind": (tap_file.MAGIC + described(kind="__init__"), "its kind is '__init__'"),
    "an object array": (tap_file.MAGIC + loss_of("|O", 1), r"type '\|O'"),
    "a negative length": (tap_file.MAGIC + loss_of("<f8", -1), "shape"),
    "a huge array": (tap_file.MAGIC + loss_of("<f8", 10**9), "not readable"),
    "a table that is not there": (
        tap_file.MAGIC + OPEN + record(b'{"kind":"step","step":0,"arrays":[["parameters/7","<f8",[0]]]}'),
        "not readable",
    ),
    "a rank beyond its world": (
        tap_file.MAGIC + described(kind="open", rank=4, world=1, seed=0),
        "are not one run",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_with_its_path(name, tmp_path):
    data, text = HOSTILE[name]
    (tmp_path / "rank-00000.tap").write_bytes(data)
    with pytest.raises(FileError, match=text) as error:
        read_run(tmp_path)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("full", ["\0", b"1", 3, None, (1, 2.0), [True]], ids=repr)
def test_what_are_no_steps_is_refused(full, tmp_path):
    with pytest.raises(TypeError, match=r"full is .*collection of steps"):
        parity.Tap(tmp_path, full=full)


def test_every_damaged_byte_is_refused_or_ends_the_file(tmp_path):
    with parity.Tap(tmp_path) as tap:
        for step in range(2):
            tap(step, loss=1.0, parameters={"w": np.ones(2)})
    path = tmp_path / "rank-00000.tap"
    data = path.read_bytes()
    for i in range(0, len(data), 3):
        path.write_bytes(data[:i] + bytes([data[i] ^ 0x55]) + data[i + 1 :])
        try:
            run = read_run(tmp_path)
        except FileError:
            continue
        assert any("incomplete" in note for note in run.notes)


FOLDERS = {
    "no folder": (lambda path: path / "none", "no folder of taps"),
    "an empty folder": (lambda path: path, "no files of taps"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_without_taps_is_refused(name, tmp_path):
    make, text = FOLDERS[name]
    with pytest.raises(FileError, match=text):
        read_run(make(tmp_path))


# ------------------------------------------------------------------------------------------------ processes

LOOP = """
import sys, recorder, torch
net = torch.nn.Linear(3, 3)
tap = recorder.Tap("run", start=net)
step = 0
while True:
    tap(step, batch=torch.ones(4, 3), loss=torch.tensor(float(step)), parameters=net)
    step += 1
    if step == 20:
        print(sorted({"jax", "jaxpar", "flax"} & sys.modules.keys()), flush=True)
"""


@pytest.mark.slow
def test_the_one_file_taps_without_jax_and_survives_kill_9(tmp_path):
    recorder.main(["--copy", str(tmp_path / "recorder.py")])
    command = [sys.executable, "-c", LOOP]
    environment = {**os.environ, "PYTHONPATH": ""}
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"[]\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
    run = read_run(tmp_path / "run")
    assert len(run.steps) >= 20
    assert [step.loss for step in run.steps.values()] == list(range(len(run.steps)))


@functools.partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["sizes"])
@dataclasses.dataclass
class Incomparable:
    """Parameters whose structure holds a NumPy array, for which JAX cannot say whether two are equal."""

    w: object
    sizes: object


def test_parameters_whose_structure_cannot_be_compared(tmp_path):
    with parity.Tap(tmp_path) as tap:
        for step in range(2):
            tap(step, parameters=Incomparable(jnp.ones(3) * step, np.ones(2)), loss=1.0)
    records, _ = tap_file.read(tmp_path / "rank-00000.tap")
    tables = [header["rows"] for header, _ in records if header["kind"] == "table"]
    assert tables == [[["w", [3], "float64"]]]
