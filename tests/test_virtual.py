"""Virtual devices: how many, with which threads, and that a loop on them does not stop."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import jaxpar
from jaxpar import errors
from jaxpar._devices import devices as _devices
from jaxpar._devices import virtual as _virtual
from jaxpar._upstream import start

ROOT = Path(__file__).parent.parent

VARIABLES = ("PJRT_NPROC", "NPROC", "JAXPAR_PJRT_NPROC", "JAXPAR_DEVICES", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS")


@pytest.fixture
def environment(monkeypatch):
    """os.environ without what sizes pools; a function that sets variables there."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(_virtual, "_asked", None)
    monkeypatch.setattr(_virtual, "cores", lambda: 2)
    return lambda **variables: [monkeypatch.setenv(k, v) for k, v in variables.items()]


def clean() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in VARIABLES} | {"JAX_PLATFORMS": "cpu"}


def python(code, inherit=False, **variables):
    """A process of its own, in which warnings are errors; returns what it printed."""
    env = {k: v for k, v in os.environ.items() if inherit or k not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env=env | {"JAX_PLATFORMS": "cpu"} | variables,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


# ----------------------------------------------------------------------------------- devices and pool


def test_the_smallest_safe_pool():
    assert [_virtual._safe(n) for n in (1, 2, 4, 8, 16)] == [1, 5, 9, 17, 33]


@pytest.mark.parametrize(
    ("n", "cores", "pool"), [(8, 2, "17"), (8, 16, "17"), (8, 17, None), (1, 2, None), (2, 64, None)]
)
def test_the_pool_is_set_where_the_default_is_too_small(n, cores, pool, environment, monkeypatch):
    monkeypatch.setattr(_virtual, "cores", lambda: cores)
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    assert _virtual._set(n)
    assert os.environ.get("PJRT_NPROC") == pool


@pytest.mark.slow
def test_the_last_number_counts():
    code = (
        "import os, jaxpar; jaxpar.virtual_devices(9); jaxpar.virtual_devices(6); import jax;"
        "print(jax.device_count(), os.environ['PJRT_NPROC']); jaxpar.virtual_devices(6)"
    )
    # The parent's pool is for eight devices, and jaxpar's own: it is not taken for the user's.
    for inherit in (False, True):
        assert python(code, inherit) == ["6", "13"]


@pytest.mark.parametrize(("variable", "other"), [("PJRT_NPROC", "NPROC"), ("NPROC", "PJRT_NPROC")])
def test_a_pool_of_the_user_is_respected(variable, other, environment, monkeypatch):
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    environment(**{variable: "40"})
    jaxpar.virtual_devices(8)
    assert (os.environ[variable], os.environ.get(other)) == ("40", None)


def test_a_small_pool_of_the_user_is_respected_with_a_warning(environment, monkeypatch):
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    environment(PJRT_NPROC="16")
    with pytest.warns(
        UserWarning, match=r"PJRT_NPROC=16 gives XLA fewer than 17 threads, and a .* on 8"
    ) as w:
        jaxpar.virtual_devices(8)
    assert w[0].filename == __file__
    assert "set it to 17" in str(w[0].message)
    assert os.environ["PJRT_NPROC"] == "16"


def test_text_that_xla_does_not_understand_is_no_pool(environment, monkeypatch):
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    environment(PJRT_NPROC="many", NPROC="")
    jaxpar.virtual_devices(2)
    assert os.environ["PJRT_NPROC"] == "5"


# -------------------------------------------------------------------------------------------- too late


def test_jax_runs_with_another_number(devices, monkeypatch):
    monkeypatch.setattr(start, "_line", "train.py:12")
    with pytest.raises(errors.BackendError) as caught:
        jaxpar.virtual_devices(3)
    assert str(caught.value) == (
        "virtual_devices: JAX already runs with 8 CPU devices, so 3 cannot be had any more. JAX was started "
        "at train.py:12. Call jaxpar.virtual_devices before that (a default value such as rngs=nnx.Rngs(0) "
        "is made at import: take rngs without one), or start again with JAXPAR_DEVICES=3 (or, for a program "
        "that uses JAX before jaxpar, JAX_NUM_CPU_DEVICES=3 PJRT_NPROC=7)."
    )
    jaxpar.virtual_devices(8)


JAX_FIRST = "from flax import nnx\nimport jaxpar\n"
CLASS = "class Net(nnx.Module):\n    def __init__(self, rngs=nnx.Rngs(0)):\n        pass\n"
SAYS = {
    "a default, watched": (JAX_FIRST + CLASS, "JAX was started at {file}:4."),
    "an array, watched": (
        JAX_FIRST + "import jax\n\nx = jax.numpy.ones(3)\n",
        "JAX was started at {file}:5.",
    ),
    "a library's line is not named": (
        JAX_FIRST + "import optax\n\n\nnnx.Linear(1, 1, rngs=nnx.Rngs(0))\n",
        "JAX was started at {file}:6.",
    ),
    "an array after another number": (
        "import jaxpar\n\njaxpar.virtual_devices(4)\nimport jax\n\nx = jax.numpy.ones(3)\n",
        "JAX was started at {file}:6.",
    ),
    "a default, not watched": (
        f"import jaxpar\nfrom flax import nnx\n{CLASS}",
        "before jaxpar was in use, most likely by the default value at {file}:4.",
    ),
    "unknown": (
        "import jax\n\njax.devices()\nimport jaxpar\n",
        "What started JAX is unknown: it was before jaxpar was in use.",
    ),
}


ALONE = 'jaxpar.distributed.init_process_group(init_method="tcp://127.0.0.1:1", rank=0, world_size=2)'


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("call", ["jaxpar.virtual_devices(2)", ALONE])
@pytest.mark.parametrize("case", SAYS)
def test_the_line_that_started_jax_is_named(case, call, tmp_path):
    source, says = SAYS[case]
    file = tmp_path / "train.py"
    file.write_text(f"{source}\n\ndef main():\n    {call}\n\n\nmain()\n")
    ended = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, env=clean())
    assert ended.returncode == 1
    assert says.format(file=file) in ended.stderr


def test_no_page_starts_jax_by_a_default():
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.py")]
    default = re.compile(r"^\s*def .*=\s*nnx\.Rngs\(", re.MULTILINE)
    assert default.search("    def __init__(self, rngs=nnx.Rngs(0)):")
    assert not [page.name for page in pages if default.search(page.read_text())]


def test_jax_runs_with_too_few_threads(devices, environment):
    with pytest.warns(UserWarning, match="JAX started before jaxpar and has fewer than 17 threads"):
        jaxpar.virtual_devices(8)


@pytest.mark.slow
def test_the_variables_that_the_error_names_work():
    code = "import jax; jax.devices(); import jaxpar; jaxpar.virtual_devices(3); print(len(jaxpar.devices()))"
    assert python(code, JAX_NUM_CPU_DEVICES="3", PJRT_NPROC="7") == ["3"]


@pytest.mark.parametrize("n", [0, -1, 1.5, "4", True])
def test_impossible_numbers(n):
    with pytest.raises(errors.DeviceError, match="must be a positive integer"):
        jaxpar.virtual_devices(n)


# -------------------------------------------------------------------------------------- JAXPAR_DEVICES


@pytest.mark.slow
def test_the_environment_is_honoured():
    code = "import os, jaxpar; print(len(jaxpar.devices()), os.environ['PJRT_NPROC'])"
    assert python(code, JAXPAR_DEVICES="3") == ["3", "7"]


@pytest.mark.slow
def test_the_call_is_stronger_than_the_environment():
    code = "import jaxpar; jaxpar.virtual_devices(2); print(len(jaxpar.devices()))"
    assert python(code, JAXPAR_DEVICES="3") == ["2"]


@pytest.mark.parametrize("text", ["0", "-2", "2.0", "eight", "\N{SUPERSCRIPT TWO}"])
def test_impossible_environments(text, environment, monkeypatch):
    _virtual.from_environment.cache_clear()
    environment(JAXPAR_DEVICES=text)
    with pytest.raises(errors.DeviceError, match=f"JAXPAR_DEVICES='{text}' must be a positive integer"):
        _devices.devices()


def test_an_environment_that_says_nothing(environment):
    assert _virtual.from_environment.__wrapped__() is None
    environment(JAXPAR_DEVICES=" ")
    assert _virtual.from_environment.__wrapped__() is None
    environment(JAXPAR_DEVICES=" 8 ", PJRT_NPROC="17")
    assert _virtual.from_environment.__wrapped__() == 8


def test_an_environment_that_comes_too_late_is_refused(devices, environment):
    _virtual.from_environment.cache_clear()
    environment(JAXPAR_DEVICES="3")
    for _ in range(2):
        text = "JAXPAR_DEVICES=3 came too late: JAX already runs with 8 CPU devices"
        with pytest.raises(errors.BackendError, match=text):
            jaxpar.devices()


# -------------------------------------------------------------------------------- a loop does not stop


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("callback", [False, True])
def test_a_loop_that_never_waits_does_not_stop(callback):
    """2,000 asynchronous steps on 8 devices, 200 with a callback; with 15 and 16 threads they stop."""
    code = f"""
import jaxpar
jaxpar.virtual_devices(8)
import jax, numpy as np
place, callback = jaxpar.Placement(tuple(jaxpar.devices())), {callback}
width = 256 if callback else 16
def loss(w, x):
    def module(x):
        if callback:  # a large argument is copied by another thread
            x = jax.pure_callback(np.copy, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return x @ w
    return (jaxpar.data_parallel(module, x) ** 2).mean()
step = jax.jit(lambda w, x: w - 1e-3 * jax.grad(loss)(w, x), donate_argnums=0)
w = jax.device_put(np.eye(width, dtype=np.float32), place.replicated)
x = jax.device_put(np.full((8 * width, width), 0.01, np.float32), place.stacked)
for _ in range(200 if callback else 2000):
    w = step(w, x)
print(np.isfinite(w).all())
"""
    assert python(code) == ["True"]
