"""torch.cuda's verbs, prefetch and the bytes of a device, on the devices of the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpar
from jaxpar.data import DataLoader, TensorDataset, prefetch


def test_every_device_has_a_name_and_a_number(devices):
    assert jaxpar.device_count() == len(devices)
    assert [jaxpar.get_device_properties(d).index for d in devices] == list(range(len(devices)))
    assert all(jaxpar.get_device_name(d) == d.device_kind for d in devices)


def test_the_last_device_can_be_the_current_one(devices):
    last = len(devices) - 1
    with jaxpar.set_device(last):
        assert jaxpar.current_device() == last
        assert jnp.ones(2).devices() == {devices[last]}
    assert jaxpar.current_device() == 0


def test_to_moves_there_and_back(devices):
    kind, last = ("cpu" if devices[0].platform == "cpu" else "cuda"), len(devices) - 1
    there = jaxpar.to(jnp.arange(3.0), f"{kind}:{last}")
    assert jaxpar.device_of(there) == devices[last]
    np.testing.assert_array_equal(jaxpar.to(there, f"{kind}:0"), np.arange(3.0))


def test_memory_is_counted(devices):
    before = jaxpar.memory_stats(devices[0])["bytes_in_use"]
    x = jax.block_until_ready(jax.device_put(np.ones(1 << 20, np.float32), devices[0]))
    assert jaxpar.memory_stats(devices[0])["bytes_in_use"] - before >= x.nbytes


@pytest.mark.parametrize("workers", [0, 2])
def test_prefetch_gives_the_same_batches_on_their_devices(workers, devices):
    rows = 4 * len(devices)
    x = np.arange(3.0 * rows, dtype=np.float32).reshape(rows, 3)
    loader = DataLoader(TensorDataset(x), batch_size=rows // 2, num_workers=workers)
    got = [batch for (batch,) in prefetch(loader, devices)]
    np.testing.assert_array_equal(np.concatenate(got), x)
    assert all(batch.devices() == set(devices) for batch in got)
