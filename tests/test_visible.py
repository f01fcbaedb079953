"""CUDA_VISIBLE_DEVICES set too late is noticed; set in time it is not complained about."""

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from jaxpar._devices import visible as _visible

VARIABLE = "CUDA_VISIBLE_DEVICES"


@pytest.fixture
def begin(monkeypatch, tmp_path):
    """Pretends a process: the variable at its start and now, the GPUs, whether JAX runs."""

    def pretend(*, original=None, now=None, gpus=0, running=True):
        monkeypatch.setattr(_visible, "_memory", _visible._Memory())
        environ = tmp_path / "environ"
        environ.write_text(f"HOME=/\0{VARIABLE}={original}\0" if original is not None else "HOME=/\0")
        monkeypatch.setattr(_visible, "START", environ)
        found = [SimpleNamespace(platform="gpu")] * gpus or [SimpleNamespace(platform="cpu")]
        monkeypatch.setattr(jax, "local_devices", lambda: found)
        monkeypatch.setattr("jax._src.xla_bridge.backends_are_initialized", lambda: running)
        change(now)

    def change(value):
        if value is None:
            monkeypatch.delenv(VARIABLE, raising=False)
        else:
            monkeypatch.setenv(VARIABLE, value)

    pretend.change = change
    return pretend


@pytest.mark.parametrize(
    ("then", "now"), [(None, "1"), ("0,1", "1"), ("0,1", None), ("", "0"), ("GPU-5ac1", "0")]
)
def test_a_change_after_the_first_look(begin, then, now):
    begin(original=then, now=then, running=False)
    _visible.remember()
    assert _visible.changed_visible_devices() is None
    begin.change(now)
    _visible.remember()  # only the first one counts
    assert _visible.changed_visible_devices() == (then, now)
    assert _visible.in_force() == then
    begin.change(then)
    assert _visible.changed_visible_devices() is None


def test_the_warning_names_both_values_and_the_cure_and_comes_once(begin):
    begin(now="0,1", running=False)
    _visible.remember()
    begin.change("1")
    with pytest.warns(UserWarning, match=r"is '1' now and was '0,1' when JAX started") as said:
        _visible.check()
    assert "CUDA_VISIBLE_DEVICES=1 python script.py" in str(said[0].message)
    assert "no effect" in str(said[0].message)
    _visible.check()  # warnings are errors here
    begin.change(None)
    with pytest.warns(UserWarning, match="is unset now"):
        _visible.check()


@pytest.mark.parametrize(
    ("original", "now", "gpus", "then"),
    [
        (None, "0,1,2,3,4,5", 8, None),  # all eight are there, so it came too late
        ("0,1", "1", 2, "0,1"),
        ("0,1", "", 2, "0,1"),
        ("0", "-1", 1, "0"),
        (None, "0", 1, "0"),  # could have been in time, and is believed
        (None, "0,1,2,3,4,5", 2, "0,1,2,3,4,5"),  # a host with two
        (None, "1", 0, "1"),
        ("0,1", None, 2, None),
        ("3", "3", 1, "3"),
    ],
)
def test_jax_was_started_by_something_else(begin, original, now, gpus, then):
    begin(original=original, now=now, gpus=gpus)
    _visible.remember()
    assert _visible.in_force() == then


def test_without_proc_the_present_value_is_believed(begin, monkeypatch, tmp_path):
    begin(original="0,1", now="1", gpus=2)
    monkeypatch.setattr(_visible, "START", tmp_path / "no such file")
    _visible.remember()
    assert _visible.changed_visible_devices() is None


@pytest.mark.parametrize(
    ("value", "count"), [("", 0), ("0", 1), ("0,1", 2), ("2,-1,0", 1), ("0, -1, 2", 1), ("GPU-a,GPU-b", 2)]
)
def test_how_many_a_value_allows(value, count):
    assert _visible._allowed(value) == count


@pytest.mark.slow
def test_in_a_process_of_its_own():
    code = (
        "import os, warnings; warnings.simplefilter('error')\n"
        f"os.environ[{VARIABLE!r}] = '1'\n"  # in time
        "from jaxpar._devices import visible as _visible\n"
        "import jax\n"
        "_visible.remember(); jax.local_devices(); _visible.check()\n"
        "assert _visible._original() == ('0,1', True)\n"
        f"os.environ[{VARIABLE!r}] = '0'\n"
        "try: _visible.check()\n"
        "except UserWarning as warning: print(warning)\n"
    )
    environment = os.environ | {VARIABLE: "0,1", "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "is '0' now and was '1' when JAX started" in ended.stdout


def test_nothing_is_said_before_the_first_look(begin):
    begin(original="0,1", now="1", gpus=8)
    assert _visible.changed_visible_devices() is None
    _visible.check()
