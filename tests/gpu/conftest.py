"""On the devices that there are: GPUs, or with JAXPAR_DEVICES virtual CPU devices.

`make gpu` runs these tests. The conftest.py above is left out: it asks for virtual devices and turns XLA's
optimizations off.
"""

import os

import jax
import pytest

import jaxpar

DEVICES = jaxpar.devices()
if jax.default_backend() == "cpu" and "JAXPAR_DEVICES" not in os.environ:
    pytest.exit("tests/gpu: JAX sees no GPU. To try them without, set JAXPAR_DEVICES=2.", returncode=3)

# TF32 has three digits, and these tests compare six.
jax.config.update("jax_default_matmul_precision", "float32")


@pytest.fixture
def devices():
    """All devices of the host, in order."""
    return DEVICES
