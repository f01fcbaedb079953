"""The wheel: what is in it, and that type checkers see what users install."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import yaml

import jaxpar

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.slow

SCRIPT = """
import jax
import jaxpar
from flax import nnx

net = jaxpar.DataParallel(nnx.Linear(4, 2, rngs=nnx.Rngs(0)))
ids: list[int] = net.device_ids
n: int = jaxpar.device_count()
shards = jaxpar.scatter(jax.numpy.ones((4, 2)), [0, 1])
reveal_type(jaxpar.device_count())
"""

FAULTS = {
    "jaxpar.device_count() + 'a'": "Unsupported operand",
    "jaxpar.DataParalel": 'has no attribute "DataParalel"',
    "jaxpar.set_device(None, 3)": "Too many arguments",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", folder, ROOT], check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """An environment with the wheel installed, which finds everything else where these tests do."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


JAXPAR_ALONE = "[mypy-jax.*,flax.*,optax.*,orbax.*,torch.*,numpy.*]\nfollow_imports = skip\n"
"""mypy takes half a minute to read the types of other libraries for the first time."""


def check_types(
    environment: Path, text: str, settings: str = JAXPAR_ALONE
) -> subprocess.CompletedProcess[str]:
    (environment / "script.py").write_text(text)
    (environment / "mypy.ini").write_text("[mypy]\n" + settings)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--cache-dir=types",
        "--ignore-missing-imports",
        "--config-file=mypy.ini",
    ]
    return subprocess.run(
        [
            *command,
            "--ignore-missing-imports",
            f"--python-executable={environment / 'bin' / 'python'}",
            "script.py",
        ],
        cwd=environment,
        capture_output=True,
        text=True,
    )


def test_it_holds_the_library_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"jaxpar", "torch_ref", f"jaxpar-{jaxpar.__version__}.dist-info"}
    assert {"jaxpar/py.typed", "torch_ref/py.typed", "jaxpar/__init__.pyi"} <= set(names)
    assert not [name for name in names if re.search(r"/test_\w+\.py$|__pycache__|conftest", name)]
    sources = [path for top in ("jaxpar", "torch_ref") for path in (ROOT / top).rglob("*.py")]
    assert {str(path.relative_to(ROOT)) for path in sources} <= set(names)


@pytest.mark.parametrize(
    "settings", [JAXPAR_ALONE, pytest.param("", marks=pytest.mark.long)], ids=["alone", "with others"]
)
def test_it_is_typed(environment, settings):
    ended = check_types(environment, SCRIPT, settings)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert 'Revealed type is "int"' in ended.stdout or 'Revealed type is "builtins.int"' in ended.stdout


@pytest.mark.parametrize("line", FAULTS)
def test_a_planted_mistake_is_found(environment, line):
    ended = check_types(environment, f"{SCRIPT}\n{line}\n")
    assert ended.returncode == 1
    assert FAULTS[line] in ended.stdout


def test_the_import_is_light(environment):
    source = (
        "import sys, jaxpar; print(jaxpar.__file__)\n"
        "print(sorted({'jax', 'flax', 'torch', 'numpy'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [environment / "bin" / "python", "-c", source],
        check=True,
        capture_output=True,
        text=True,
        cwd=environment,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    file, loaded = ended.stdout.splitlines()
    assert file.startswith(str(environment))
    assert loaded == "[]"


def test_the_change_log_speaks_of_this_version():
    assert re.search(rf"^## {re.escape(jaxpar.__version__)}$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert f"\nversion: {jaxpar.__version__}\n" in (ROOT / "CITATION.cff").read_text()


WORKFLOWS = ROOT / ".github" / "workflows"


def jobs_of(workflow: str) -> dict:
    return yaml.safe_load((WORKFLOWS / workflow).read_text())["jobs"]


def commands(job: dict) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


@pytest.mark.parametrize(("tag", "code"), [(f"v{jaxpar.__version__}", 0), ("v99.0.0", 1), ("main", 1)])
def test_a_release_has_the_version_of_its_tag(tag, code):
    line = next(line for line in commands(jobs_of("release.yml")["build"]) if "GITHUB_REF_NAME" in line)
    ended = subprocess.run(["bash", "-c", line], cwd=ROOT, env=os.environ | {"GITHUB_REF_NAME": tag})
    assert ended.returncode == code


def test_a_release_is_tried_as_it_was_built_before_it_is_signed():
    build, tried, publish = (jobs_of("release.yml")[name] for name in ("build", "try", "publish"))
    assert (tried["needs"], publish["needs"]) == ("build", "try")
    assert commands(build)[-1:] == commands(tried) == [".ci/package python dist"]
    assert tried["strategy"]["matrix"] == jobs_of("tests.yml")["test"]["strategy"]["matrix"]
    assert [name for name, job in jobs_of("release.yml").items() if "permissions" in job] == ["publish"]
    assert {"id-token": "write", "attestations": "write"}.items() <= publish["permissions"].items()
    used = [step["uses"].partition("@")[0] for step in publish["steps"]]
    assert used[-2:] == ["actions/attest-build-provenance", "pypa/gh-action-pypi-publish"]
