"""Which devices there are and what they are called."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

import jaxpar
from jaxpar import errors


def test_several_cpu_devices_are_devices(devices):
    assert devices == jax.devices()
    assert jaxpar.device_count() == 8
    assert not jaxpar.is_available()


# docs/semantics.md row P1
def test_a_backend_that_does_not_start_is_no_accelerator(monkeypatch):
    def fails():
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr("jaxpar._devices.devices.devices", fails)
    assert jaxpar.is_available() is False


def test_one_cpu_device_is_none(monkeypatch):
    monkeypatch.setattr("jaxpar._devices.devices.devices", lambda: jax.devices()[:1])
    assert jaxpar.device_count() == 0


@pytest.mark.parametrize(
    ("spec", "index"), [(None, 0), (0, 0), (5, 5), ("cpu", 0), ("cpu:0", 0), ("cpu:7", 7)]
)
def test_names(spec, index, devices):
    assert jaxpar.device(spec) is devices[index]
    assert jaxpar.device(devices[index]) is devices[index]


# docs/semantics.md row P10
def test_a_text_without_an_index(monkeypatch, devices):
    with jaxpar.set_device(3):
        assert jaxpar.device("cpu") is devices[0]  # and not the current one
    gpus = [SimpleNamespace(platform="gpu", id=i) for i in (4, 5)]
    monkeypatch.setattr("jaxpar._devices.devices.devices", lambda: gpus)
    for current, found in [(None, gpus[0]), (devices[3], gpus[0]), (gpus[1], gpus[1])]:
        monkeypatch.setattr("jaxpar._devices.devices._current", lambda now=current: now)
        for kind in ("cuda", "gpu"):  # docs/semantics.md row P22: the words are for any accelerator
            assert jaxpar.device(kind) is found
            assert jaxpar.device(f"{kind}:1") is gpus[1]


# docs/semantics.md row P22
@pytest.mark.parametrize("kind", ["gpu", "tpu"])
def test_the_words_are_for_any_kind_of_accelerator(kind, monkeypatch):
    found = [SimpleNamespace(platform=kind, id=i) for i in range(2)]
    monkeypatch.setattr("jaxpar._devices.devices.devices", lambda: found)
    assert jaxpar.is_available()
    assert jaxpar.device_count() == 2
    assert jaxpar.device(1) is found[1]


# docs/semantics.md row P9
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cpu:8", r"'cpu:8' is out of range: this process has 8 cpu devices \(cpu:0 to cpu:7\)"),
        (8, "device id 8 is out of range"),
        (-1, "device id -1 is out of range"),
        ("foo", "'foo' is not a device; write a kind"),
        ("CPU", "'CPU' is not a device"),
        ("cpu:-1", "'cpu:-1' is not a device"),
        ("cpu:01", "'cpu:01' is not a device"),
        ("cpu:", "'cpu:' is not a device"),
        ("", "'' is not a device"),
        ("cuda:0", r"'cuda:0' asks for an accelerator and JAX sees none .*jaxpar\[cuda12\]"),
        (1.5, r"1\.5 is not a device"),
        (True, "True is not a device"),
        ([0], r"\[0\] is not a device"),
    ],
)
def test_no_such_device(spec, message):
    with pytest.raises(errors.DeviceError, match=message) as caught:
        jaxpar.device(spec)
    assert isinstance(caught.value, ValueError)


def python(code, **environment):
    import os

    env = {k: v for k, v in os.environ.items() if k not in ("PJRT_NPROC", "NPROC")} | environment
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=env, timeout=120
    )


@pytest.mark.slow
def test_importing_starts_nothing():
    done = python(
        "import sys, jaxpar; print(*(m for m in ('jax', 'flax', 'torch', 'numpy') if m in sys.modules));"
        "jaxpar.DataParallel; from jax._src import xla_bridge;"
        "print(xla_bridge.backends_are_initialized(), 'torch' in sys.modules)"
    )
    assert done.stdout.split("\n")[:2] == ["", "False False"], done.stdout + done.stderr
