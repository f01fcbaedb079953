"""profile: a trace that can be opened, a table of what ran, and nothing left running."""

from __future__ import annotations

import gzip
import json

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import jaxpar
from jaxpar import errors
from jaxpar._tools.profile import operations

X = jnp.ones((8, 3))


def step_of():
    net = jaxpar.DataParallel(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), [0, 1])
    optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
    return jaxpar.train_step(net, optimizer, lambda net, x: (net(x) ** 2).mean())


def is_free() -> bool:
    """Whether no trace is being taken."""
    try:
        jax.profiler.stop_trace()
    except RuntimeError:
        return True
    return False


@pytest.mark.full
def test_some_calls_of_a_step_are_watched(tmp_path, capsys):
    step = step_of()
    with jaxpar.profile(step, tmp_path, wait=1, active=2) as profiled:
        for i in range(5):
            profiled(X)
            assert (profiled.trace is None) == (i < 2)
    assert step.calls == 5
    with gzip.open(profiled.trace) as file:
        assert json.load(file)["traceEvents"]
    of_step = [row for row in profiled.operations if row.module == "jit_step"]
    assert {row.calls for row in of_step} <= {
        4,
        8,
        12,
        16,
    }  # two calls on two devices, some operations more often
    assert any("all-reduce" in row.name for row in of_step)
    assert sum(row.share for row in profiled.operations) == pytest.approx(1)
    assert [row.seconds for row in profiled.operations] == sorted(
        (row.seconds for row in profiled.operations), reverse=True
    )
    printed = capsys.readouterr().out
    assert printed == profiled.table() + "\n"
    assert f"the trace, for ui.perfetto.dev: {profiled.trace}" in printed
    assert is_free()


def test_other_ranks_print_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("jaxpar._tools.profile.rank", lambda: 1)
    profiled = jaxpar.profile(jnp.tanh, tmp_path, wait=0, active=1)
    profiled(X)
    assert capsys.readouterr().out == ""
    assert profiled.operations


def test_a_loop_that_ends_early(tmp_path):
    with jaxpar.profile(jnp.tanh, tmp_path, wait=0, active=9) as profiled:
        profiled(X)
    assert profiled.operations
    assert is_free()


def fails(x):
    raise OSError("no data")


@pytest.mark.full
def test_nothing_is_left_running_after_an_exception(tmp_path):
    with pytest.raises(OSError, match="no data"):
        jaxpar.profile(fails, tmp_path, wait=0)(X)
    assert is_free()
    with pytest.raises(OSError, match="no data"), jaxpar.profile(jnp.tanh, tmp_path, wait=0) as profiled:
        fails(profiled(X))
    assert is_free()


def test_one_trace_at_a_time(tmp_path):
    jax.profiler.start_trace(tmp_path)
    try:
        with pytest.raises(errors.BackendError, match="JAX takes one trace at a time"):
            jaxpar.profile(jnp.tanh, tmp_path, wait=0)(X)
    finally:
        jax.profiler.stop_trace()


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((3,), {}, TypeError),
        ((jnp.tanh,), {"active": 0}, ValueError),
        ((jnp.tanh,), {"wait": -1}, ValueError),
        ((jnp.tanh,), {"active": 1.5}, TypeError),
        ((jnp.tanh,), {"active": True}, TypeError),
    ],
)
def test_what_cannot_be_profiled(arguments, options, error):
    with pytest.raises(error, match="profile: "):
        jaxpar.profile(*arguments, **options)


def test_the_numbers_are_those_of_the_trace(tmp_path):
    def event(name, dur, **said):
        return {"ph": "X", "name": name, "dur": dur, "args": said}

    file = tmp_path / "trace.json.gz"
    events = [
        event("a", 100.0, hlo_op="a", hlo_module="one"),
        event("a", 200.0, hlo_op="a", hlo_module="one"),
        event("a", 400.0, hlo_op="a", hlo_module="two"),
        event("end: a", 900.0),
        {"ph": "M", "name": "thread_name"},
    ]
    with gzip.open(file, "wt") as out:
        json.dump({"traceEvents": events}, out)
    first, second = operations(file)
    assert first == ("a", "two", 1, pytest.approx(4e-4), pytest.approx(4 / 7))
    assert second == ("a", "one", 2, pytest.approx(3e-4), pytest.approx(3 / 7))
