"""Eight CPU devices and float64, before JAX wakes."""

import jaxpar

jaxpar.virtual_devices(8)

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_enable_x64", True)
# The tests compile some hundred programs and run each for a moment.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def devices():
    """The eight virtual devices, in order."""
    return jaxpar.devices()
