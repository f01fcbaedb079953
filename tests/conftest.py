"""Eight CPU devices and float64, before JAX wakes."""

import gc
import os
from collections import Counter
from importlib.metadata import version
from pathlib import Path

collect_ignore = ["gpu_programs", "gpu"]
"""These want XLA as it is: with its compiler for GPUs, `make gpu-programs`, and with GPUs, `make gpu`."""

CACHE = Path(__file__).parent.parent / ".cache" / "compiled"
"""Programs that another test, worker, process or run has compiled."""

# JAX reads these when it is imported; workers and processes that tests start inherit them.
os.environ.setdefault("JAXPAR_COMPILING", "off")
os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
# The tests compile some thousand programs and run each for a moment.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
FLAGS = ["--xla_cpu_parallel_codegen_split_count=1"]
"""A program in one part: to compile the parts of a small one takes a fifth longer."""
if version("jaxlib").startswith("0.10."):
    # XLA's newer code generator for the CPU takes four times as long to compile a small program. jaxlib 0.12
    # knows no other, and has made it faster.
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
inherited = os.environ.get("XLA_FLAGS", "").split()
os.environ["XLA_FLAGS"] = " ".join([*inherited, *(flag for flag in FLAGS if flag not in inherited)])

import jaxpar  # noqa: E402

jaxpar.virtual_devices(8)

import jax  # noqa: E402
import next_defaults  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_enable_x64", True)


EVERY = 7
"""Of a table, quick runs the first row and every seventh: few tables have an axis of seven values, of which a
product of settings would then always have the same. Of one marked `sampled(n)`, `make test` runs these and
every n-th, or, where n is above seven and quick leaves the table out, every n-th alone. `make proof` runs the
others."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    seen = Counter()
    for item in items:
        if hasattr(item, "callspec") and not item.get_closest_marker("long"):
            table = (item.path, item.originalname)
            row = seen[table]
            if row % EVERY:
                item.add_marker(pytest.mark.full)
            is_quick = not any(map(item.get_closest_marker, ("slow", "full")))
            sampled = item.get_closest_marker("sampled")
            n = sampled.args[0] if sampled else 1
            if row % n and (row % EVERY or (n > EVERY and not is_quick)):
                item.add_marker(pytest.mark.long)
            seen[table] += 1
        why = next_defaults.reason(item.nodeid)
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=f"next defaults: {why}"))


def pytest_collection_finish():
    """Take the imported modules out of Python's search for garbage, and search less often.

    Tracing makes many small objects, and a sixth of the tests' time went into looking at the same ones again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 10)


@pytest.fixture
def devices():
    """The eight virtual devices, in order."""
    return jaxpar.devices()


MAPS = Path("/proc/self/maps")
MOST = 20_000
"""Linux gives a process 65,530 of these, every compiled program takes a few, and XLA dies without."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Gives back the compiled programs of earlier files; files share few of them."""
    another_file = nextitem is not None and nextitem.path != item.path
    if another_file and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST:
        jax.clear_caches()
