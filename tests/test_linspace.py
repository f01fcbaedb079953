"""linspace has torch's bits, on every processor that multiplies and adds at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpar.nn.channels_first import functional as F

torch = pytest.importorskip("torch")
BOUNDS = st.floats(-1000, 1000, width=16, allow_subnormal=False)
"""Of 11 bits, so that 64 hold every sum."""
FUSED = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


@pytest.mark.full
@pytest.mark.parametrize("name", ["float32", "float64"])
@given(start=BOUNDS, end=BOUNDS, steps=st.integers(0, 70))
def test_every_value_is_torchs(name, start, end, steps):
    values = F.linspace(start, end, steps, dtype=name)
    torchs = torch.linspace(start, end, steps, dtype=getattr(torch, name)).numpy()
    assert values.dtype == torchs.dtype
    if FUSED and name == "float32":
        np.testing.assert_array_equal(values, torchs)
    np.testing.assert_allclose(values, torchs, rtol=0, atol=4e3 * np.finfo(name).eps)


@pytest.mark.parametrize("kind", [jnp.float16, jnp.int32])
def test_other_types_are_jax_numpys(kind):
    np.testing.assert_array_equal(F.linspace(0, 9, 4, dtype=kind), jnp.linspace(0, 9, 4, dtype=kind))


def test_traced_bounds_are_jax_numpys():
    values = jax.jit(lambda end: F.linspace(0, end, 5))(2.0)
    np.testing.assert_array_equal(values, jnp.linspace(0, 2.0, 5))


def test_the_type_is_the_default_one():
    assert F.linspace(0, 1, 3).dtype == jnp.zeros(()).dtype
    with jax.enable_x64(False):
        assert F.linspace(0, 1, 3).dtype == jnp.float32
