"""MetricsLog: what was logged is in the files, whatever happens, and logging waits for nothing."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jaxpar
from jaxpar._metrics import chart
from jaxpar.errors import MetricError

MetricsLog = jaxpar.MetricsLog
ODD = [math.nan, math.inf, -math.inf, 0.1, 1e-300, -0.0]


def assert_same(got, want):
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], name)


def lines(directory: Path) -> tuple[list[dict], list[str]]:
    objects = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return objects, (directory / "metrics.csv").read_text().splitlines()


# ---------------------------------------------------------------------------------- what is written


def test_every_number_comes_back_as_it_was(tmp_path):
    values = [
        *ODD,
        3,
        True,
        np.float32(0.1),
        np.array(2),
        np.array(ml_dtypes.bfloat16(1.5)),
        jnp.float32(0.1),
    ]
    with MetricsLog(tmp_path) as log:
        for step, value in enumerate(values):
            log.log(step, loss=value)
    want = {"step": np.arange(len(values)), "loss": [float(v) for v in values]}
    assert_same(MetricsLog.read(tmp_path), want)
    (tmp_path / "metrics.jsonl").unlink()
    assert_same(MetricsLog.read(tmp_path), want)


@pytest.mark.parametrize("value", [True, np.True_, jnp.array(True), 3, jnp.array(3), 2**60])
def test_what_is_no_float_is_written_as_it_is(tmp_path, value):
    with MetricsLog(tmp_path, csv=False) as log:
        log.log(0, a=value)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    written = json.loads(line)["a"]
    assert written == value
    assert type(written) is (bool if np.asarray(value).dtype == bool else int)


def test_json_has_no_nan(tmp_path):
    with MetricsLog(tmp_path, csv=False) as log:
        log.log(0, a=math.nan, b=jnp.array(-jnp.inf), c=1e400)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail) == {
        "step": 0,
        "a": "NaN",
        "b": "-Infinity",
        "c": "Infinity",
    }
    assert not (tmp_path / "metrics.csv").exists()


def test_a_column_that_comes_later(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.log(1, loss=0.5)
        log.log(2, loss=0.25)
        log.log(2, **{"val/top,1": 0.75})
        log.log(3, loss=0.125)
    assert lines(tmp_path)[1] == ['step,loss,"val/top,1"', "1,0.5,", "2,0.25,", "2,,0.75", "3,0.125,"]
    got = MetricsLog.read(tmp_path)
    want = {"step": [1, 2, 3], "loss": [0.5, 0.25, 0.125], "val/top,1": [math.nan, 0.75, math.nan]}
    assert_same(got, want)
    assert sorted(os.listdir(tmp_path)) == ["metrics.csv", "metrics.jsonl"]


class Slow:
    """A device array that is ready when it is told so."""

    shape, dtype = (), np.dtype(float)
    is_fully_addressable = True

    def __init__(self, value):
        self.value, self.ready, self.copies = value, False, 0

    def is_ready(self):
        return self.ready

    def is_deleted(self):
        return False

    def copy_to_host_async(self):
        self.copies += 1

    def __array__(self, dtype=None, copy=None):
        assert self.ready, "somebody waits for the device"
        return np.array(self.value)


def test_nothing_waits_and_the_order_is_kept(tmp_path):
    slow = Slow(1.0)
    log = MetricsLog(tmp_path)
    log.log(0, loss=slow)
    log.log(1, loss=2.0)
    assert lines(tmp_path)[0] == []
    assert slow.copies == 1
    slow.ready = True
    log.log(2, loss=Slow(3.0))
    assert [row["loss"] for row in lines(tmp_path)[0]] == [1.0, 2.0]
    with pytest.raises(AssertionError, match="waits for the device"):
        log.close()


# ----------------------------------------------------------------------------------------- the end


KILLED = """
import sys
import jaxpar
log = jaxpar.MetricsLog(sys.argv[1])
assert not {"jax", "flax", "torch"} & set(sys.modules)
for step in range(10**9):
    log.log(step, loss=1 / (step + 1), **({"late": step} if step > 5 else {}))
    if step == 50:
        print("go", flush=True)
"""


@pytest.mark.slow
def test_kill_minus_9_loses_nothing_and_the_log_goes_on(tmp_path):
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"go\n"
        process.send_signal(signal.SIGKILL)
    n = len(MetricsLog.read(tmp_path)["step"])
    assert n > 50
    for name, torn in (("metrics.jsonl", '{"step": 1, "lo'), ("metrics.csv", "12,0.")):
        path = tmp_path / name
        path.write_bytes(path.read_bytes().removesuffix(b"\n") + b"\n" + torn.encode())
    got = MetricsLog.read(tmp_path)
    np.testing.assert_array_equal(got["step"], np.arange(len(got["step"])))
    n = len(got["step"])
    with MetricsLog(tmp_path) as log:
        with pytest.raises(MetricError, match=rf"step 3 comes after step {n - 1}.*log\.resume_from\(3\)"):
            log.log(3, loss=0.0)
        log.resume_from(40)
        log.log(40, loss=7.0, late=8, later=9)
    got = MetricsLog.read(tmp_path)
    np.testing.assert_array_equal(got["step"], np.arange(41))
    assert (got["loss"][39:].tolist(), got["late"][5:7].tolist()[1], got["later"][40]) == (
        [1 / 40, 7.0],
        6,
        9,
    )
    objects, table = lines(tmp_path)
    assert len(objects) == len(table) - 1 == 41
    assert table[-1] == "40,7.0,8,9"


def test_a_kill_between_the_two_files(tmp_path):
    with MetricsLog(tmp_path) as log:
        for step in range(3):
            log.log(step, loss=step)
    path = tmp_path / "metrics.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    MetricsLog(tmp_path).close()
    assert lines(tmp_path)[1] == ["step,loss", "0,0", "1,1", "2,2"]


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "1 / 0"])
def test_a_log_that_is_left_open_is_written_at_the_end(tmp_path, ending):
    """In this process an end is a garbage collection; the exit of Python does the same."""
    log = MetricsLog(tmp_path)
    log._waiting.append((0, {"loss": 1.5}))
    if ending:
        with pytest.raises((SystemExit, ZeroDivisionError)), log:
            exec(ending)
    del log
    assert lines(tmp_path)[0] == [{"step": 0, "loss": 1.5}]


def test_resume_from_the_beginning_and_a_file_that_was_not_written_before(tmp_path):
    with MetricsLog(tmp_path, csv=False) as log:
        log.log(5, loss=1)
    with MetricsLog(tmp_path) as log:
        assert lines(tmp_path)[1] == ["step,loss", "5,1"]
        log.resume_from(0)
        log.log(0, loss=2)
    assert lines(tmp_path) == ([{"step": 0, "loss": 2}], ["step,loss", "0,2"])


def test_resume_from_a_step_removes_it_and_all_after_it(tmp_path):
    with MetricsLog(tmp_path) as log:
        for step in range(4):
            log.log(step, loss=step)
        log.resume_from(2)
        assert lines(tmp_path)[1] == ["step,loss", "0,0", "1,1"]
        log.log(2, loss=9)
    assert lines(tmp_path)[1] == ["step,loss", "0,0", "1,1", "2,9"]
    assert [row["step"] for row in lines(tmp_path)[0]] == [0, 1, 2]


def test_other_processes_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with MetricsLog(tmp_path / "run") as log:
        log.log(0, loss=1)
        with pytest.raises(MetricError, match="loss has shape"):
            log.log(1, loss=np.ones(2))
        log.resume_from(0)
        log.plot(tmp_path / "curve.png")
    assert os.listdir(tmp_path) == []


# --------------------------------------------------------------------------------------- elsewhere


class Board:
    def __init__(self):
        self.scalars, self.flushed = [], 0

    def add_scalar(self, tag, scalar_value, global_step):
        self.scalars.append((tag, scalar_value, global_step))

    def flush(self):
        self.flushed += 1


def test_tensorboard(tmp_path, monkeypatch):
    board = Board()
    with MetricsLog(tmp_path, tensorboard=board) as log:
        log.log(3, loss=jnp.float32(0.5), n=2)
    assert (board.scalars, board.flushed) == ([("loss", 0.5, 3), ("n", 2, 3)], 1)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match="pip install tensorboardX"):
        MetricsLog(tmp_path, tensorboard=True)
    made = types.SimpleNamespace(SummaryWriter=lambda directory: board)
    monkeypatch.setitem(sys.modules, "tensorboardX", made)
    for wanted, scalars in ((True, 3), (None, 3), (False, 3)):
        with MetricsLog(tmp_path, tensorboard=wanted) as log:
            log.log(4, loss=1)
        assert len(board.scalars) == scalars


def test_the_curves(tmp_path):
    with MetricsLog(tmp_path) as log:
        for step in range(4):
            log.log(step, **{f"metric {i}": step * i for i in range(4)}, odd=math.nan)
        log.plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def columns(count: int) -> dict[str, np.ndarray]:
    return {f"metric {i}": np.arange(4.0) * i for i in range(count)}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_no_panel_is_empty(count):
    pytest.importorskip("matplotlib")
    drawn = chart.panels(np.arange(4), columns(count)).axes
    assert [panel.get_title() for panel in drawn] == list(columns(count))
    assert all(panel.has_data() for panel in drawn)


def test_what_cannot_be_drawn_is_named(tmp_path, monkeypatch):
    """SVG holds letters as paths, so the foot is looked at before it is drawn."""
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    foot = []
    monkeypatch.setattr("matplotlib.figure.Figure.supxlabel", lambda self, text, **_: foot.append(text))
    nothing = np.full(4, np.nan)
    chart.draw({"step": np.arange(4), **columns(1), "odd": nothing}, tmp_path / "one.png")
    lines = foot[0].splitlines()
    assert lines[0] == "no finite number: odd"
    assert lines[1].startswith(f"1970-01-01 00:00 UTC · jaxpar {jaxpar.__version__}, jax {jax.__version__}")
    with pytest.raises(MetricError, match="none of 1 metrics has a finite number"):
        chart.draw({"step": np.arange(4), "odd": nothing}, tmp_path / "none.png")
    with pytest.raises(MetricError, match="none of 0 metrics"):
        chart.draw({"step": np.arange(0)}, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture_can_be_made_again(ending, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    monkeypatch.setattr(sys, "argv", ["train.py"])
    made = [tmp_path / f"{i}.{ending}" for i in range(2)]
    for path in made:
        chart.draw({"step": np.arange(4), **columns(2)}, path)
    assert made[0].read_bytes() == made[1].read_bytes()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "172800")
    chart.draw({"step": np.arange(4), **columns(2)}, made[1])
    assert made[0].read_bytes() != made[1].read_bytes()


# --------------------------------------------------------------------------------------- bad values


def donated():
    x = jnp.ones(())
    x.delete()
    return x


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: "0.5", r"loss is '0\.5' of type str, and a metric is a number"),
        (lambda: None, "loss is None of type NoneType"),
        (lambda: [1.0], r"loss is \[1\.0\] of type list"),
        (lambda: 1j, r"loss is 1j of type complex"),
        (lambda: np.ones(2), r"loss has shape \(2,\), and a metric is one number\. Take its mean"),
        (lambda: jnp.ones((1, 1)), r"loss has shape \(1, 1\)"),
        (lambda: jnp.array(1j), "loss has dtype complex128"),
        (lambda: jax.random.key(0), r"loss has dtype key<fry>"),
        (lambda: np.array("0.5"), "loss has dtype <U3"),
        (donated, "loss was donated to a later computation or deleted"),
    ],
    ids=[
        "text",
        "none",
        "list",
        "complex",
        "axes",
        "axes on device",
        "complex array",
        "key",
        "text array",
        "donated",
    ],
)
def test_bad_values_are_named(tmp_path, value, message):
    log = MetricsLog(tmp_path)
    with pytest.raises(MetricError, match=r"^MetricsLog\.log: " + message) as caught:
        log.log(0, good=1, loss=value())
    assert isinstance(caught.value, ValueError)
    log.close()
    assert lines(tmp_path)[0] == []


def test_other_misuse(tmp_path):
    log = MetricsLog(tmp_path)
    with pytest.raises(MetricError, match="loss is being traced"):
        jax.jit(lambda x: log.log(0, loss=x))(1.0)
    for step in (jnp.array(3), 1.0, True, "1"):
        with pytest.raises(MetricError, match="Count on the host"):
            log.log(step, loss=1)
    with pytest.raises(MetricError, match=r"'a\\nb' cannot be the name of a column"):
        log.log(0, **{"a\nb": 1})
    log.close()
    with pytest.raises(MetricError, match="is closed"):
        log.log(0, loss=1)
    with pytest.raises(ValueError, match="leave no file"):
        MetricsLog(tmp_path, csv=False, jsonl=False)
    with pytest.raises(FileNotFoundError, match=r"neither metrics\.jsonl nor metrics\.csv"):
        MetricsLog.read(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("metrics.jsonl", '{"step": 0, "loss": 1}\n{"loss": 1}\n', 2),
        ("metrics.jsonl", '{"step": 0}\n{"step": 1, "loss": "one"}\n', 2),
        ("metrics.csv", "step,loss\n0,1\n1,2,3\n", 3),
        ("metrics.csv", "step,loss\n0,one\n", 2),
    ],
)
def test_a_file_of_something_else_is_left_alone(tmp_path, name, text, line):
    (tmp_path / name).write_text(text)
    with pytest.raises(MetricError, match=rf"line {line} of .*{name} is not a row of metrics"):
        MetricsLog(tmp_path)
    assert (tmp_path / name).read_text() == text


def test_a_full_disk_names_the_file_and_tears_no_row(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(tmp_path, csv=False)
    log.log(0, loss=1.0)
    whole = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 5, limits[1]))  # room for five bytes more
    try:
        with pytest.raises(OSError, match=r"File too large: '.*metrics.jsonl'"):
            log.log(1, loss=2.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == whole
    log.log(2, loss=3.0)
    log.close()
    assert_same(MetricsLog.read(tmp_path), {"step": np.array([0, 2]), "loss": [1.0, 3.0]})


def test_a_row_waits_for_its_last_number(tmp_path, monkeypatch):
    ready = {1.0: True, 2.0: False}
    monkeypatch.setattr("jaxpar._metrics.log.is_ready", ready.__getitem__)
    log = MetricsLog(tmp_path)
    log.log(0, first=1.0, second=2.0)
    assert lines(tmp_path)[0] == []
    ready[2.0] = True
    log.log(1, first=1.0)
    assert [row["step"] for row in lines(tmp_path)[0]] == [0, 1]
    log.close()
