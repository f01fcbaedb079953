"""The pytest plugin: `@pytest.mark.devices(8)`, the fixtures `parity` and `program`; imports no JAX."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ._tools.program import ProgramReport
    from .parity import Comparison

FOLDER = "parity_records"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("jaxpar", "parity with PyTorch")
    group.addoption(
        "--parity-record", action="store_true", help="make the records that are missing (needs torch)"
    )
    group.addoption("--parity-update", action="store_true", help="make all records again (needs torch)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "devices(n): the test needs n devices; where there are too few, virtual ones are made"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    needed = max((_needed(item) for item in items), default=0)
    if needed:
        import jax

        from ._devices.virtual import virtual_devices
        from .errors import JaxparError

        try:
            # A conftest may already have configured more.
            virtual_devices(max(needed, jax.config.jax_num_cpu_devices))  # type: ignore[attr-defined]
        except JaxparError as error:
            # JAX runs already, perhaps with enough devices: `pytest_runtest_setup` checks that per test.
            config.stash[REASON] = str(error)


REASON = pytest.StashKey[str]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    needed = _needed(item)
    if needed:
        import jax

        available = len(jax.devices())
        if available < needed:
            why = item.config.stash.get(REASON, "the devices of this host are no CPUs")
            pytest.fail(f"{item.nodeid} needs {needed} devices and JAX has {available}: {why}", pytrace=False)


def _needed(item: pytest.Item) -> int:
    marks = [mark.args[0] for mark in item.iter_markers("devices") if mark.args]
    return max(marks, default=0)


class Parity:
    """The fixture `parity`: comparisons that fail the test, with and without torch.

    ```python
    def test_port(parity):
        parity(TorchNet(), Net(nnx.Rngs(0)), x)   # the arguments of jaxpar.parity.compare
    ```
    """

    def __init__(self, folder: Path, record: bool, update: bool):
        self.folder, self.record, self.update = folder, record, update

    def __call__(
        self, torch_module: Any, flax_module: Any, inputs: Any = None, **arguments: Any
    ) -> Comparison:
        from .parity import assert_parity

        return assert_parity(torch_module, flax_module, inputs, **arguments)

    def recorded(
        self,
        name: str,
        torch_module: Callable[[], Any],
        flax_module: Any,
        inputs: Any = None,
        **arguments: Any,
    ) -> Comparison:
        """Compare with a record; with --parity-record or --parity-update torch writes the record first."""
        from . import parity

        # `torch_module` builds the torch module, and is called only to write the record.
        # A parametrized test's name has brackets and slashes.
        path = self.folder / (re.sub(r"[^\w.-]", "_", name) + ".safetensors")
        if self.update or (self.record and not path.exists()):
            path.parent.mkdir(exist_ok=True)
            return parity.record(path, torch_module(), flax_module, inputs, **arguments)
        loss, optimizer = arguments.get("loss"), arguments.get("optimizer")
        comparison = parity.check(
            path,
            flax_module,
            loss=loss[1] if loss else None,
            optimizer=optimizer[1] if optimizer else None,
            variables=arguments.get("variables"),
            flax_kwargs=arguments.get("flax_kwargs"),
        )
        parity.require_same(comparison)
        return comparison


@pytest.fixture
def program() -> Callable[..., ProgramReport]:
    """Judge a compiled training step; a test fails unless the step is proven right.

    ```python
    def test_step(program):
        program(step, *shapes)   # the arguments of jaxpar.program
    ```
    """

    def proven(step: Any, *args: Any, **kwargs: Any) -> ProgramReport:
        from ._tools.program import program

        report = program(step, *args, **kwargs)
        report.check()
        return report

    return proven


@pytest.fixture
def parity(request: pytest.FixtureRequest) -> Parity:
    """Compare a torch model and a Flax model; a difference fails the test with its table and cause."""
    option = request.config.getoption
    folder = Path(os.fspath(request.path)).parent / FOLDER
    return Parity(folder, option("--parity-record"), option("--parity-update"))
