"""Which devices there are and what they are called."""

from __future__ import annotations

import subprocess
import sys

import jax
import pytest

import jaxpar
from jaxpar import errors


def test_several_cpu_devices_are_devices(devices):
    assert devices == jax.devices()
    assert jaxpar.device_count() == 8
    assert not jaxpar.is_available()


# torch-semantics 3 P1
def test_a_backend_that_does_not_start_is_no_accelerator(monkeypatch):
    def fails():
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr("jaxpar._devices.devices", fails)
    assert jaxpar.is_available() is False


def test_one_cpu_device_is_none(monkeypatch):
    monkeypatch.setattr("jaxpar._devices.devices", lambda: jax.devices()[:1])
    assert jaxpar.device_count() == 0


@pytest.mark.parametrize(
    ("spec", "index"), [(None, 0), (0, 0), (5, 5), ("cpu", 0), ("cpu:0", 0), ("cpu:7", 7)]
)
def test_names(spec, index, devices):
    assert jaxpar.device(spec) is devices[index]
    assert jaxpar.device(devices[index]) is devices[index]


# torch-semantics 3 P9
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cpu:8", r"'cpu:8' is out of range: this process has 8 cpu devices \(cpu:0 to cpu:7\)"),
        (8, "device id 8 is out of range"),
        (-1, "device id -1 is out of range"),
        ("foo", "'foo' is no device; write a kind"),
        ("CPU", "'CPU' is no device"),
        ("cpu:-1", "'cpu:-1' is no device"),
        ("cpu:01", "'cpu:01' is no device"),
        ("cpu:", "'cpu:' is no device"),
        ("", "'' is no device"),
        ("cuda:0", r"'cuda:0' asks for an accelerator and JAX sees none .*jaxpar\[cuda12\]"),
        (1.5, r"1\.5 is no device"),
        (True, "True is no device"),
        ([0], r"\[0\] is no device"),
    ],
)
def test_no_such_device(spec, message):
    with pytest.raises(errors.DeviceError, match=message) as caught:
        jaxpar.device(spec)
    assert isinstance(caught.value, ValueError)


# ------------------------------------------------------------------------------------ virtual devices


def python(code, **environment):
    import os

    env = {k: v for k, v in os.environ.items() if k not in ("PJRT_NPROC", "NPROC")} | environment
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=env, timeout=120
    )


def test_virtual_devices_and_their_threads():
    done = python(
        "import os, jaxpar; jaxpar.virtual_devices(6); import jax;"
        "print(jax.device_count(), os.environ['PJRT_NPROC']);"
        "jaxpar.virtual_devices(6)"
    )
    assert done.returncode == 0, done.stderr
    count, threads = map(int, done.stdout.split())
    assert count == 6
    assert threads >= 12


def test_virtual_devices_after_jax_has_started():
    done = python("import jax, jaxpar; jax.devices(); jaxpar.virtual_devices(3)")
    assert (
        "BackendError: virtual_devices: JAX already runs with 1 CPU device, so 3 cannot be had" in done.stderr
    )
    assert "JAXPAR_DEVICES=3" in done.stderr


def test_a_pool_that_the_user_set_is_respected():
    done = python(
        "import os, jaxpar; jaxpar.virtual_devices(2); print(os.environ['PJRT_NPROC'])", PJRT_NPROC="9"
    )
    assert done.stdout.strip() == "9", done.stderr
    done = python("import jaxpar; jaxpar.virtual_devices(8)", PJRT_NPROC="3")
    assert "PJRT_NPROC=3 gives XLA fewer than 16 threads" in done.stderr


@pytest.mark.parametrize("n", [0, -1, 1.5, "4", True])
def test_impossible_numbers(n):
    with pytest.raises(errors.DeviceError, match="must be a positive integer"):
        jaxpar.virtual_devices(n)


def test_importing_starts_nothing():
    done = python(
        "import sys, jaxpar; print(*(m for m in ('jax', 'flax', 'torch', 'numpy') if m in sys.modules));"
        "jaxpar.DataParallel; from jax._src import xla_bridge;"
        "print(xla_bridge.backends_are_initialized(), 'torch' in sys.modules)"
    )
    assert done.stdout.split("\n")[:2] == ["", "False False"], done.stdout + done.stderr


def test_a_loop_that_never_waits_does_not_stop():
    """2,000 asynchronous steps on 8 virtual devices; without enough threads this stops in an all-reduce."""
    done = python(
        """
import jaxpar
jaxpar.virtual_devices(8)
import jax, jax.numpy as jnp, numpy as np
place = jaxpar.Placement(tuple(jaxpar.devices()))
def loss(w, x):
    return (jaxpar.data_parallel(lambda x: x @ w, x) ** 2).mean()
step = jax.jit(lambda w, x: w - 1e-3 * jax.grad(loss)(w, x), donate_argnums=0)
w = jax.device_put(np.eye(16, dtype=np.float32), place.replicated)
x = jax.device_put(np.ones((64, 16), np.float32), place.stacked)
for _ in range(2000):
    w = step(w, x)
print(float(jnp.abs(w).sum()) > 0)
"""
    )
    assert done.stdout.strip() == "True", done.stderr[-2000:]
