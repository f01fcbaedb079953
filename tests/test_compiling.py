"""Signs of life: what compiles for long says so, and nothing else does."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
import time
import types

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import jaxpar
from jaxpar._parallel import compiling as _compiling
from jaxpar._training import engine

X = jnp.ones((8, 3))
TRACING = 0.3
"""Seconds that the loss takes to trace, more than are waited for here."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(_compiling, "QUIET", 0.05)
    monkeypatch.delenv(_compiling.VARIABLE, raising=False)


def slow(net, x):
    time.sleep(TRACING)
    return (net(x) ** 2).mean()


def step_of(kind=lambda net: net, loss_fn=slow):
    net = kind(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
    return jaxpar.train_step(net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param), loss_fn)


KINDS = {
    "plain": (lambda net: net, "1 device"),
    "DataParallel": (lambda net: jaxpar.DataParallel(net, [0, 1]), "2 devices"),
    "DistributedDataParallel": (lambda net: jaxpar.DistributedDataParallel(net, [0, 1]), "2 devices"),
}
LINE = slow.__code__.co_firstlineno


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_gets_what_is_compiled_and_how_long_it_took(kind, capfd):
    make, devices = KINDS[kind]
    step = step_of(make)
    step(X)
    what = rf"train_step \(slow at test_compiling\.py:{LINE}\) for {devices}"
    first, last = capfd.readouterr().err.splitlines()
    assert re.fullmatch(rf"jaxpar: compiling {what} \.\.\. \d+ s", first)
    seconds = re.fullmatch(rf"jaxpar: compiled {what} in (\d+\.\d) s", last)
    assert seconds is not None
    assert float(seconds[1]) >= TRACING
    step(X)
    assert capfd.readouterr().err == ""


class SlowDraws(nnx.Module):
    def __call__(self, x, rngs):
        time.sleep(TRACING)
        return x + jax.random.normal(rngs())


@pytest.mark.full
def test_an_evaluation_and_a_call_say_so_too(capfd):
    class Slow(nnx.Module):
        def __call__(self, x):
            time.sleep(TRACING)
            return x

    jaxpar.eval_step(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), slow)(X)
    assert f"compiling eval_step (slow at test_compiling.py:{LINE}) for 1 device" in capfd.readouterr().err
    jaxpar.DataParallel(Slow(), [0, 1])(X)
    assert "compiling DataParallel (Slow) for 2 devices" in capfd.readouterr().err
    jaxpar.DataParallel(SlowDraws(), [0, 1])(X, nnx.Rngs(0))
    assert "compiling DataParallel (SlowDraws) for 2 devices" in capfd.readouterr().err


def test_one_line_counts_in_a_terminal(monkeypatch):
    said = []
    terminal = types.SimpleNamespace(isatty=lambda: True, write=said.append, flush=lambda: None)
    monkeypatch.setattr("sys.stderr", terminal)
    step_of()(X)
    assert all(text.startswith("\r") for text in said)
    assert [text.endswith("\n") for text in said] == [False] * (len(said) - 1) + [True]
    assert "\x1b[K" in said[-1]


@pytest.mark.parametrize(
    ("variable", "rank", "lines"), [("off", 0, 0), ("", 1, 0), ("all", 1, 2), ("", 0, 2)]
)
def test_who_speaks(variable, rank, lines, monkeypatch, capfd):
    monkeypatch.setenv(_compiling.VARIABLE, variable)
    monkeypatch.setattr(engine, "rank", lambda: rank)
    step_of()(X)
    assert len(capfd.readouterr().err.splitlines()) == lines


def test_what_is_quick_says_nothing(monkeypatch, capfd):
    monkeypatch.setattr(_compiling, "QUIET", 60.0)
    step_of()(X)
    assert capfd.readouterr().err == ""


def test_an_error_ends_it(capfd):
    def fails(net, x):
        time.sleep(TRACING)
        raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        step_of(loss_fn=fails)(X)
    assert "jaxpar: stopped compiling train_step (fails at" in capfd.readouterr().err
    assert not [t for t in threading.enumerate() if t.name == "jaxpar compiling"]


@pytest.mark.full
def test_a_long_step_is_no_compilation(capfd):
    def sleeps(x):
        time.sleep(TRACING)
        return x

    def loss_fn(net, x):
        x = jax.pure_callback(sleeps, jax.ShapeDtypeStruct((), x.dtype), x[0, 0])
        return (net(jnp.ones((1, 3)) * jax.lax.stop_gradient(x)) ** 2).mean()

    step = step_of(loss_fn=loss_fn)
    step(X).block_until_ready()
    capfd.readouterr()
    step(X).block_until_ready()
    assert capfd.readouterr().err == ""


@pytest.mark.full
@pytest.mark.parametrize("cache", [None, "/cache"])
def test_a_cache_is_suggested_once(cache, monkeypatch, capfd):
    config = types.SimpleNamespace(jax_compilation_cache_dir=cache)
    monkeypatch.setattr(_compiling, "jax", types.SimpleNamespace(config=config))
    monkeypatch.setattr(_compiling, "LONG", 0.1)
    monkeypatch.setattr(_compiling, "_suggested", False)
    for _ in range(2):
        step_of()(X)
    assert capfd.readouterr().err.count("set JAX_COMPILATION_CACHE_DIR to a folder") == (cache is None)


def test_a_closed_stderr_does_no_harm(monkeypatch):
    closed = types.SimpleNamespace(isatty=lambda: False, flush=lambda: None)
    monkeypatch.setattr("sys.stderr", closed)
    closed.write = lambda text: (_ for _ in ()).throw(ValueError("I/O operation on closed file"))
    step_of()(X)


RESTARTED = """
import os
import signal

import jax

events = []
jax.monitoring.register_event_listener(lambda event, **rest: events.append(event))

import jax.numpy as jnp
import optax
from flax import nnx

import jaxpar

jaxpar.distributed.init_process_group()
net = jaxpar.DistributedDataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
float(jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())(jnp.ones((4, 3))))
attempt, rank = os.environ["JAXPAR_RESTART_COUNT"], jaxpar.distributed.get_rank()
of_cache = [event.rpartition("/")[2] for event in events if "compilation_cache/cache_" in event]
print("cache", attempt, rank, of_cache.count("cache_hits"), of_cache.count("cache_misses"), flush=True)
jaxpar.distributed.barrier()
if attempt == "0" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_restart_under_launch_reads_its_programs_from_the_cache(tmp_path):
    script, cache = tmp_path / "train.py", tmp_path / "cache"
    script.write_text(RESTARTED)
    line = [sys.executable, "-m", "jaxpar", "launch", "-n", "2", "--max-restarts", "1", str(script)]
    variables = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    ended = subprocess.run(line, capture_output=True, text=True, env=os.environ | variables, timeout=200)
    assert ended.returncode == 0, ended.stderr[-2000:]
    told = [tuple(map(int, found)) for found in re.findall(r"cache (\d) (\d) (\d+) (\d+)", ended.stdout)]
    hits = {(attempt, rank): hits for attempt, rank, hits, _ in told}
    misses = {(attempt, rank): misses for attempt, rank, _, misses in told}
    assert set(hits) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert misses[0, 0] > 0
    assert misses[1, 0] == misses[1, 1] == 0
    assert hits[1, 0] >= misses[0, 0]


def test_a_decorated_function_is_named_by_its_own_line():
    def loss(x):
        return x

    decorated = functools.partial(functools.wraps(loss)(lambda x: loss(x)), 1)
    assert _compiling.place_of(decorated) == f"loss at test_compiling.py:{loss.__code__.co_firstlineno}"
