"""port: a package that requires torch for an extra, whose outputs are of a file that imports no torch."""

import importlib
import importlib.util
import sys

import pytest
import torch

from jaxpar import parity
from jaxpar.errors import PortError
from jaxpar.parity._port.reading import packages

FILES = {
    "small-1.0.dist-info/METADATA": (
        "Metadata-Version: 2.1\nName: small\nVersion: 1.0\nProvides-Extra: torch\nRequires-Dist: {torch}\n"
    ),
    "small-1.0.dist-info/top_level.txt": "small\n",
    "small/__init__.py": "",
    "small/base.py": """
        from collections import OrderedDict
        from dataclasses import fields


        class Output(OrderedDict):
            def __post_init__(self):
                for field in fields(self):
                    self[field.name] = getattr(self, field.name)

            def __getitem__(self, key):
                return dict(self.items())[key] if isinstance(key, str) else self.to_tuple()[key]

            def to_tuple(self):
                return tuple(self.values())
    """,
    "small/outputs.py": """
        from dataclasses import dataclass

        from .base import Output


        @dataclass
        class Sample(Output):
            sample: "torch.Tensor"
    """,
    "small/net.py": """
        import torch
        from torch import nn

        from .outputs import Sample


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 3)

            def forward(self, x):
                return Sample(sample=torch.tanh(self.linear(x)))
    """,
}


@pytest.fixture
def package(request, tmp_path, monkeypatch):
    """The package in a folder of installed ones; `request.param` is how it requires torch."""
    folder = tmp_path / "site-packages"
    for name, text in FILES.items():
        (path := folder / name).parent.mkdir(parents=True, exist_ok=True)
        required = f"Requires-Dist: {request.param}" if request.param else ""
        lines = text.replace("Requires-Dist: {torch}", required).split("\n")
        path.write_text("\n".join(line.removeprefix(" " * 8) for line in lines).lstrip("\n"))
    monkeypatch.syspath_prepend(str(folder))
    caches = [x for x in vars(packages).values() if hasattr(x, "cache_clear")]
    for cache in caches:
        cache.cache_clear()
    yield importlib.import_module("small.net")
    for name in [name for name in sys.modules if name.partition(".")[0] == "small"]:
        del sys.modules[name]
    for cache in caches:
        cache.cache_clear()


INPUTS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("package", ['torch>=2; extra == "torch"', "torch", None], indirect=True)
def test_a_package_with_modules_is_written(package):
    port = parity.port(package.Net, INPUTS)
    assert not port.holes
    assert "class Sample" in port.source
    assert "import small" not in port.source
    assert port.status == 0, (port.differences, port.failure)


@pytest.mark.parametrize("package", ['numpy; extra == "torch"'], indirect=True)
def test_a_package_without_torch_is_not_ported(package):
    with pytest.raises(PortError):
        parity.port(package.Net, INPUTS)


@pytest.mark.parametrize("package", [None], indirect=True)
def test_a_package_that_takes_jax_arrays_as_well_stays(package, tmp_path):
    folder = tmp_path / "site-packages" / "small"
    (folder / "functions.py").write_text("def halved(x):\n    return x / 2\n")
    (folder / "backends.py").write_text("def load():\n    import jax.numpy\n")
    (tmp_path / "user.py").write_text(USER)
    spec = importlib.util.spec_from_file_location("port_extra_user", tmp_path / "user.py")
    sys.modules["port_extra_user"] = user = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(user)
    port = parity.port(user.Net, INPUTS)
    assert "from small.functions import halved" in port.source
    assert port.status == 0, (port.differences, port.failure)


USER = """
from torch import nn
from small.functions import halved


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return halved(self.linear(x))
"""
