"""`jaxpar devices` and `jaxpar env`: with GPUs that are pretended, and on a host without any."""

import json
import os
import re
import signal
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

from jaxpar._devices import visible as _visible
from jaxpar._tools.devices_and_environment import environment, nvml, table
from jaxpar._tools.devices_and_environment.sizes import sizes

GIB = 2**30


def jaxpar(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jaxpar", *args],
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if k != "PJRT_NPROC"} | variables,
    )


def shown(seen: table.DeviceTable, width: int = 120) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as caught:
        console.print(table.text(seen))
    return caught.get()


class Broken(Exception):
    """NVMLError of the pretended library."""


@pytest.fixture
def gpus(monkeypatch):
    """Two pretended GPUs and a library that tells of them; the second one tells no temperature."""
    cuda = SimpleNamespace(platform_version="PJRT C API\ncuda 12090")
    found = [
        SimpleNamespace(platform="gpu", device_kind="NVIDIA H100", local_hardware_id=i, client=cuda)
        for i in range(2)
    ]
    for i, d in enumerate(found):
        d.process_index, d.id = 0, i
    stats = {"bytes_in_use": 3 * GIB, "peak_bytes_in_use": 70 * GIB, "bytes_limit": 60 * GIB}
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: found)
    monkeypatch.setattr(table._current, "memory_stats", lambda d: stats)
    monkeypatch.setattr(nvml, "bus_address", lambda ordinal: f"0000:{ordinal}b:00.0")

    library = ModuleType("pynvml")
    library.NVMLError, library.NVML_TEMPERATURE_GPU, library.shut = Broken, 0, 0
    library.handles = {"0000:0b:00.0": 0, "0000:1b:00.0": 1, "GPU-a": 1}

    def temperature(handle, sensor):
        if handle == 1:
            raise Broken("not supported")
        return 61

    library.nvmlInit = lambda: None
    library.nvmlShutdown = lambda: setattr(library, "shut", library.shut + 1)
    library.nvmlDeviceGetHandleByPciBusId = library.nvmlDeviceGetHandleByUUID = library.handles.__getitem__
    library.nvmlDeviceGetHandleByIndex = lambda index: index
    library.nvmlDeviceGetName = lambda handle: "NVIDIA T4" if handle == 7 else "NVIDIA H100"
    library.nvmlDeviceGetTemperature = temperature
    library.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=90 + handle)
    library.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(used=71 * GIB, total=80 * GIB)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return SimpleNamespace(devices=found, library=library)


def test_gpus_with_the_library(gpus):
    seen = table.look()
    assert [row.name for row in seen.rows] == ["cuda:0", "cuda:1"]
    assert [row.utilisation_percent for row in seen.rows] == [90, 91]
    assert [row.temperature_celsius for row in seen.rows] == [61, None]
    assert gpus.library.shut == 1
    said = shown(seen)
    for expected in ("GPU used", "3.0 / 70.0 / 60.0 GiB", "71.0 / 80.0 GiB", "90%", "61°C", "NVIDIA H100"):
        assert expected in said
    assert "all processes" in said
    narrow = shown(seen, width=75).split()
    assert "…" not in "".join(narrow)
    assert {"70.0", "80.0", "91%"} <= set(narrow)


def test_without_the_library_it_says_what_to_install(gpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    seen = table.look()
    assert seen.rows[0].utilisation_percent is None
    assert "pip install nvidia-ml-py" in shown(seen)
    assert "GPU used" not in shown(seen).splitlines()[0]


def test_a_library_without_a_driver_is_told(gpus, monkeypatch):
    def nvmlInit():
        raise Broken("Driver Not Loaded")

    monkeypatch.setattr(gpus.library, "nvmlInit", nvmlInit)
    assert "not to be had: Driver Not Loaded" in shown(table.look())


@pytest.mark.parametrize(
    ("value", "loads"),
    [
        (None, [90, 91]),
        ("1,0", [91, 90]),
        ("GPU-a,0", [91, 90]),
        ("7,0", [None, 90]),  # the library's number 7 is another kind of GPU
        ("1", [91, None]),  # and of a second device the variable says nothing
    ],
)
def test_without_the_driver_the_variable_tells_which_gpu_it_is(gpus, monkeypatch, value, loads):
    monkeypatch.setattr(nvml, "bus_address", lambda ordinal: None)
    monkeypatch.setattr(_visible, "in_force", lambda: value)
    told = nvml.readings(gpus.devices)
    assert [reading.utilisation_percent for reading in told.by_device] == loads


def test_the_driver_is_asked_without_a_driver():
    assert nvml.bus_address(10**6) is None


def test_cpu_devices_count_arrays_and_never_load_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it would be told in a note
    before = table.look().rows
    x = jax.device_put(jnp.ones(1000, jnp.float32), jax.local_devices()[3])
    rows = table.look().rows
    assert [row.name for row in rows] == [f"cpu:{i}" for i in range(8)]
    assert rows[3].bytes_in_use - before[3].bytes_in_use == x.nbytes
    assert rows[3].peak_bytes_in_use is None
    said = shown(table.look())
    for column in ("index", "name", "kind", "process", "in use / peak / limit", "load", "temp."):
        assert column in said.splitlines()[0]
    assert "the sum of this process's arrays" in said
    assert "nvidia-ml-py" not in said


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((0, None, None), "0 / - / - B"),
        ((None, None), "- / -"),
        ((1023,), "1023 B"),
        ((1024,), "1.0 KiB"),
        ((1536, 512), "1.5 / 0.5 KiB"),
        ((3 * GIB, 80 * GIB), "3.0 / 80.0 GiB"),
        ((5000 * 2**40,), "5000.0 TiB"),
    ],
)
def test_sizes(counts, said):
    assert sizes(*counts) == said


@pytest.mark.slow
def test_devices_as_json():
    ended = jaxpar("devices", "--devices", "3", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    assert [(d["index"], d["name"], d["kind"], d["process"]) for d in found["devices"]] == [
        (i, f"cpu:{i}", "cpu", 0) for i in range(3)
    ]
    assert {"bytes_in_use", "peak_bytes_in_use", "bytes_limit", "utilisation_percent"} <= set(
        found["devices"][0]
    )


@pytest.mark.slow
def test_watch_ends_well_on_ctrl_c():
    # A shell that starts jobs in the background has them ignore SIGINT.
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from jaxpar._cli.main import main\nmain()"
    )
    command = [sys.executable, "-u", "-c", script, "devices", "--devices", "2", "--watch", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        heads = 0
        while heads < 3:
            heads += "in use / peak / limit" in running.stdout.readline()
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=30)
    assert (running.returncode, said) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--watch", "--json"], "choose one"),
        (["--watch", "0"], "Invalid value for '--watch'"),
        (["--devices", "0"], "Invalid value for '--devices'"),
    ],
)
def test_misuse(args, message):
    ended = jaxpar("devices", *args)
    assert ended.returncode == 2
    assert message in ended.stderr


@pytest.mark.slow
def test_a_backend_that_is_not_there():
    ended = jaxpar("devices", JAX_PLATFORMS="tpu")
    assert ended.returncode == 2
    assert ended.stderr.startswith("jaxpar: devices: JAX cannot start: ")
    assert "JAX_PLATFORMS=cpu" in ended.stderr
    assert "Traceback" not in ended.stderr

    ended = jaxpar("env", JAX_PLATFORMS="tpu")
    assert ended.returncode == 0
    assert "failed: " in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
    assert re.search(r"^jax_platforms +tpu$", ended.stdout, re.M)


@pytest.mark.slow
def test_env_as_json():
    ended = jaxpar("env", "--devices", "2", "--json", XLA_FLAGS="--xla_cpu_enable_fast_math=true", HOME="/x")
    found = json.loads(ended.stdout)
    assert list(found) == ["versions", "host", "backends", "options", "variables"]
    assert found["versions"]["jax"] == jax.__version__
    assert {"python", "jaxpar", "jaxlib", "flax", "optax", "numpy", "orbax-checkpoint", "torch"} <= set(
        found["versions"]
    )
    host = found["host"]
    assert host["cpus"] >= host["cpus_of_this_process"] >= 1
    assert host["memory_total"] > host["memory_free"] > 0
    assert host["disk_free_here"] > 0
    assert found["backends"] == {
        "default_backend": "cpu",
        "devices": ["cpu:0 cpu", "cpu:1 cpu"],
        "process_index": 0,
        "process_count": 1,
    }
    assert found["options"]["jax_enable_x64"] is False
    assert found["variables"]["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=true"
    assert {"JAX_PLATFORMS", "PJRT_NPROC"} <= set(found["variables"])
    assert "HOME" not in found["variables"]
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in found["variables"]  # jaxpar's own doing


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "unused"),
    [
        (["env"], {"torch", "flax", "rich"}),
        (["devices"], {"torch", "flax"}),
        (["env", "--help"], {"jax", "numpy", "rich"}),
        (["devices", "--help"], {"jax", "numpy", "rich"}),
    ],
)
def test_what_is_not_imported(args, unused):
    code = (
        "import sys\n"
        "from jaxpar._cli.main import cli\n"
        f"try: cli({args!r})\n"
        "except SystemExit: pass\n"
        f"print(sorted({unused!r} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_what_is_broken_is_told_in_its_place(monkeypatch):
    def broken():
        raise OSError("no such disk\nand more")

    monkeypatch.setattr(environment.shutil, "disk_usage", lambda path: broken())
    monkeypatch.setattr(environment.metadata, "distributions", broken)
    monkeypatch.setattr(environment.os, "environ", {})
    found = environment.environment()
    assert found["host"]["disk_free_here"] == "failed: OSError: no such disk\nand more"
    assert found["versions"]["packages"].startswith("failed: OSError")
    said = environment.text(found)
    assert "none of those that matter is set" in said
    assert f"\n{' ' * 30}and more" in said
