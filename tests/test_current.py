"""The current device, and what is known of devices."""

from __future__ import annotations

import gc
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpar
from jaxpar import errors


@pytest.fixture(autouse=True)
def first_device_afterwards():
    with jax.default_device(None):
        yield


# docs/semantics.md rows P4, P8
def test_context_manager(devices):
    assert jaxpar.current_device() == 0
    with jaxpar.set_device(2) as d:
        assert d is devices[2]
        assert jaxpar.current_device() == 2
        assert jnp.ones(2).devices() == {devices[2]}
        with jaxpar.set_device("cpu:5"):
            assert jaxpar.current_device() == 5
        assert jaxpar.current_device() == 2
    assert jaxpar.current_device() == 0


# docs/semantics.md row P8: always restores, even if set_device ran inside or an exception ended it
def test_context_manager_restores_whatever_happens_inside():
    def fails():
        with jaxpar.set_device(1):
            jaxpar.set_device(4)
            assert jaxpar.current_device() == 4
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert jaxpar.current_device() == 0


# docs/semantics.md row P4: per thread
def test_it_belongs_to_the_thread():
    seen = []
    with jaxpar.set_device(3):
        thread = threading.Thread(target=lambda: seen.append(jaxpar.current_device()))
        thread.start()
        thread.join()
    assert seen == [0]


# docs/semantics.md row P4: where torch has no CUDA and raises, that one device exists
def test_on_a_host_with_one_cpu_device_it_is_0(monkeypatch, devices):
    monkeypatch.setattr("jaxpar._devices.devices.devices", lambda: devices[:1])
    assert jaxpar.device_count() == 0
    assert jaxpar.current_device() == 0


def test_jaxs_own_default_device_is_the_same_thing(devices):
    with jax.default_device(devices[6]):
        assert jaxpar.current_device() == 6
        assert jaxpar.device() is devices[6]
        assert jaxpar.device_of(jaxpar.cuda(np.ones(2))) is devices[6]


# docs/semantics.md row P8: operations on arrays that exist run where these are
def test_existing_arrays_stay(devices):
    x = jaxpar.to(np.ones(3), 1)
    with jaxpar.set_device(4):
        assert (x * 2).devices() == {devices[1]}


# docs/semantics.md row P7: a negative number is an error here
@pytest.mark.parametrize(
    ("spec", "message"), [(-1, "out of range"), (8, "out of range"), ("gpu", "accelerator")]
)
def test_no_such_device(spec, message):
    with pytest.raises(errors.DeviceError, match=message):
        jaxpar.set_device(spec)


def test_a_current_device_without_an_index(monkeypatch, devices):
    monkeypatch.setattr("jaxpar._devices.devices.devices", lambda: devices[2:])
    with jax.default_device(devices[0]), pytest.raises(errors.DeviceError, match="cpu:0, which has no index"):
        jaxpar.current_device()


# docs/semantics.md row P6
def test_names_and_properties():
    assert jaxpar.get_device_name(0) == jaxpar.get_device_name() == "cpu"
    properties = jaxpar.get_device_properties(3)
    assert (properties.name, properties.index, properties.platform, properties.process_index) == (
        "cpu",
        3,
        "cpu",
        0,
    )
    for bad in (8, -1, "cuda"):
        with pytest.raises(errors.DeviceError):
            jaxpar.get_device_properties(bad)


@pytest.mark.full
def test_memory_of_live_arrays():
    gc.collect()  # arrays of earlier tests in reference cycles would be freed in between
    before = jaxpar.memory_stats(5)["bytes_in_use"]
    x = jaxpar.to(np.ones(1000), 5)
    stats = jaxpar.memory_stats(5)
    assert stats["bytes_in_use"] == before + x.nbytes
    assert jaxpar.memory_stats(5) == stats, "looking does not change what is seen"
    assert set(stats) == {"bytes_in_use", "peak_bytes_in_use", "bytes_limit"}
    del x
    assert jaxpar.memory_stats(5)["bytes_in_use"] == before


def test_synchronize_waits():
    x = jaxpar.to(np.ones((400, 400)), 2)
    for _ in range(20):
        x = x @ x / 400
    jaxpar.synchronize(2)
    assert x.is_ready()
    jaxpar.synchronize()
