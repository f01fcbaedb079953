"""jaxpar profile --startup: every second in one phase, every trace and program counted once."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from jaxpar._cli.main import cli
from jaxpar._tools.startup import report
from jaxpar._tools.startup.clock import BEFORE, COMPILE, MODULES, READ, RUN, TRACE, Clock
from jaxpar._tools.startup.watching import TIMED, StartupWatch

# ------------------------------------------------------------------------------------------- the clock


def nested(clock):
    with clock.phase(TRACE), clock.phase(COMPILE):
        clock.move(READ, 0.25)


def parts(clock):
    with clock.inside(MODULES), clock.phase(TRACE):
        pass
    clock.begin("step 1")


def elsewhere(clock):
    thread = threading.Thread(target=clock.enter, args=(TRACE,))
    thread.start()
    thread.join()
    clock.begin(BEFORE)


def failing(clock):
    with pytest.raises(KeyError), clock.phase(TRACE):
        raise KeyError


CLOCKS = {  # every look at the clock is a second after the one before
    nested: {(BEFORE, RUN): 1, (BEFORE, TRACE): 2, (BEFORE, COMPILE): 0.75, (BEFORE, READ): 0.25},
    parts: {(BEFORE, RUN): 2, (MODULES, RUN): 2, (MODULES, TRACE): 1},
    elsewhere: {(BEFORE, RUN): 1},
    failing: {(BEFORE, RUN): 1, (BEFORE, TRACE): 1},
}


@pytest.mark.parametrize("run", CLOCKS, ids=lambda run: run.__name__)
def test_every_second_counts_once(run):
    ticks = iter(range(100))
    clock = Clock(lambda: float(next(ticks)))
    run(clock)
    assert {key: seconds for key, seconds in clock.seconds.items() if seconds} == CLOCKS[run]
    assert sum(clock.seconds.values()) == next(ticks) - 1


def test_the_library_of_an_extension_is_loaded_in_its_imports_phase(tmp_path):
    """Creating the module loads the library, executing it runs its initialisation."""
    ticks = iter(range(100))
    clock = Clock(lambda: float(next(ticks)))
    (tmp_path / "slow.py").write_text("")
    with StartupWatch(clock, 1).active():
        sys.path.insert(0, str(tmp_path))
        try:
            spec = sys.meta_path[0].find_spec("slow")
        finally:
            sys.path.remove(str(tmp_path))
        for step in (lambda: spec.loader.create_module(spec), lambda: spec.loader.exec_module(object())):
            before = clock.seconds[BEFORE, "import slow"]
            with contextlib.suppress(AttributeError):
                step()
            assert clock.seconds[BEFORE, "import slow"] > before


@pytest.mark.parametrize("module", TIMED)
def test_what_is_timed_is_there(module):
    for path in TIMED[module]:
        assert callable(functools.reduce(getattr, path.split("."), importlib.import_module(module)))


def test_the_text_has_what_is_counted():
    clock = Clock()
    clock.seconds[BEFORE, "import slow"] += 2.5
    counts = clock.counts("jit(f)", f"{os.getcwd()}/train.py:7")
    counts.traced, counts.compiled, counts.cached, counts.seconds = 3, 2, 1, 1.5
    text = report.text(clock, 2)
    assert "2.50 s to the end of step 2" in text
    assert "import: slow 2.500" in text
    assert "     3         2           1    1.500  f at train.py:7" in text
    assert "traced more than once:\n  f at train.py:7" in text


@pytest.mark.parametrize("unwritten", [True, False])
def test_modules_that_are_compiled_anew_each_time_are_named(monkeypatch, unwritten):
    monkeypatch.setattr(sys, "dont_write_bytecode", unwritten)
    clock = Clock()
    clock.seconds[BEFORE, "import slow"] += 2.5
    assert ("PYTHONDONTWRITEBYTECODE is set" in report.text(clock, 2)) is unwritten


# --------------------------------------------------------------------------------------------- scripts

SCRIPT = """
import sys, time
import slow_import
import jaxpar
jaxpar.virtual_devices(2)
import jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx

class Net(nnx.Module):
    def __init__(self):
        time.sleep(0.4)
        self.w = nnx.Param(np.ones((3, 1), np.float32))
    def __call__(self, x):
        time.sleep(0.5)
        return x @ self.w

def loss_fn(net, x):
    return (net(x) ** 2).mean()

@jax.jit
def thrice(x):
    return x + 1

time.sleep(0.3)
for n in (1, 2, 2, 3, 1):
    thrice(np.ones(n, np.float32))
net = jaxpar.DataParallel(Net())
step = jaxpar.train_step(net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param), loss_fn)
for i in range(5):
    step(np.ones((4, 3), np.float32))
    print("after step", i + 1)
"""
SLEPT = {("import", 0.6), (MODULES, 0.4), (TRACE, 0.5), (RUN, 0.3)}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What the command prints of the script, without and with programs in XLA's cache."""
    folder = tmp_path_factory.mktemp("startup")
    (folder / "slow_import.py").write_text("import time\ntime.sleep(0.6)\n")
    (folder / "train.py").write_text(SCRIPT)
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    command = [sys.executable, "-m", "jaxpar", "profile", "--startup", "--json", "train.py"]
    outputs = [
        subprocess.run(
            command, cwd=folder, env=os.environ | cache, capture_output=True, text=True, timeout=120
        )
        for _ in range(2)
    ]
    for process in outputs:
        assert process.returncode == 0, process.stderr
    return [process.stdout.partition("{") for process in outputs]


@pytest.mark.slow
def test_planted_sleeps_are_in_their_phases(reports):
    printed, brace, text = reports[0]
    assert printed == "after step 1\n"  # the script ends in its second step
    document = json.loads(brace + text)
    rows = document["parts"]
    assert list(rows) == [BEFORE, MODULES, "step 1", "between steps 1 and 2", "step 2"]
    total = sum(sum(row.values()) for row in rows.values())
    assert total == pytest.approx(document["seconds"], abs=1e-6)
    measured = {
        "import": document["imports"]["slow_import"],
        MODULES: rows[MODULES][RUN],
        TRACE: rows["step 1"][TRACE],
        RUN: rows[BEFORE][RUN],
    }
    for phase, seconds in SLEPT:
        assert seconds <= measured[phase] < seconds + 0.25, (phase, measured)
    assert sum(row["import"] for row in rows.values()) == pytest.approx(sum(document["imports"].values()))
    assert {"jax", "flax", "jaxpar", "numpy"} <= set(document["imports"])


@pytest.mark.slow
def test_traces_and_programs_are_counted_by_function(reports):
    first, second = (json.loads(brace + text) for _, brace, text in reports)
    rows = {row["function"]: row for row in first["functions"]}
    expected = {
        "thrice": ("    thrice(", 3, 3, 3),
        "step": ("    step(", 1, 1, 1),
        "loss_fn": ("def loss_fn(", 1, 0, 0),
    }
    for name, (code, *numbers) in expected.items():
        row = rows[name]
        assert row["line"] == f"train.py:{1 + SCRIPT[: SCRIPT.index(code)].count(chr(10))}"
        assert [row["traced"], row["lowered"], row["compiled"]] == numbers, name
    assert f"thrice at {rows['thrice']['line']}" in first["traced_more_than_once"]
    assert not any("step" in name for name in first["traced_more_than_once"])
    assert all(row["cached"] == 0 for row in first["functions"])
    assert all(row["cached"] == row["compiled"] for row in second["functions"])


RANKS = """
import jaxpar
import numpy as np, optax
from flax import nnx
jaxpar.distributed.init_process_group()
net = jaxpar.DistributedDataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
step = jaxpar.train_step(net, nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param), lambda net, x: net(x).sum())
while True:
    step(np.ones((4, 3), np.float32))
"""


@pytest.mark.slow
def test_ranks_that_compare_trace_an_update_once(tmp_path):
    (tmp_path / "train.py").write_text(RANKS)
    command = [sys.executable, "-m", "jaxpar", "launch", "-n", "2", "-m", "jaxpar"]
    command += ["profile", "--startup", "--steps", "1", "train.py"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    (head,) = (line for line in lines if "to the end of step 1" in line)  # rank 0 alone prints
    assert head.startswith("[0]")
    assert any("other ranks" in line for line in lines)
    # The check of the optimizer and the fingerprint for the other rank share a trace.
    again = lines[lines.index("[0] traced more than once:") :]
    assert not any("advance at train.py:7" in line for line in again)


@pytest.mark.slow
def test_a_function_and_a_failure(tmp_path):
    (tmp_path / "train.py").write_text(
        "import sys\ndef first(): print(sys.argv[1:])\ndef second(): raise OSError('no data')\n"
    )
    for name, code, printed in (("first", 0, "['--epochs', '3']"), ("second", 2, ""), ("third", 2, "")):
        command = [sys.executable, "-m", "jaxpar", "profile", "--startup"]
        command += [f"train.py:{name}", "--epochs", "3"]
        process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert process.returncode == code, process.stderr
        assert process.stdout.startswith(printed)
        assert ("to its end" in process.stdout) == (code == 0)


def test_what_is_no_script_is_refused(tmp_path):
    for arguments, text in (
        (["profile", "train.py"], "--startup"),
        (["profile", "--startup", str(Path(tmp_path) / "none.py")], "there is no such file"),
    ):
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 2
        assert text in result.output
