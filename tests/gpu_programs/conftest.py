"""Programs for GPUs that are not there. `make gpu-programs` runs these tests, with XLA's compiler for GPUs.

The conftest.py above is left out: it turns XLA's optimizations off, and these tests look at what they do.
"""

import pytest

import jaxpar


@pytest.fixture(scope="session", autouse=True)
def compiler():
    """Ends the session if there is no compiler: a test that does not run shows nothing."""
    try:
        jaxpar.topology("h100")
    except ImportError as error:
        pytest.exit(f"{error} Run `make gpu-programs`.", returncode=3)
