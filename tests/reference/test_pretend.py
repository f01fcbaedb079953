"""The pretence itself: what it gives, what it replaces, and that nothing of it remains."""

import ast
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import _functions, comm

import torch_ref
from torch_ref import Devices, UnsupportedTorch, _pretend, pretend
from torch_ref._accelerator import Accelerator
from torch_ref._source import on_first_device

FOLDER = Path(torch_ref.__file__).parent
OWNERS = [
    torch,
    torch._C,
    torch._utils,
    torch.accelerator,
    torch.Tensor,
    comm,
    _functions,
    *(getattr(_functions, f) for f in ("Broadcast", "ReduceAddCoalesced", "Gather", "Scatter")),
    *(
        import_module(f"torch.nn.parallel.{word}")
        for word in ("data_parallel", "parallel_apply", "replicate", "scatter_gather")
    ),
    nn.DataParallel,
]


def everything() -> dict[tuple[str, str], int]:
    """The identity of every name in the parts of torch that could have been touched."""
    return {(owner.__name__, name): id(value) for owner in OWNERS for name, value in vars(owner).items()}


def test_what_it_gives() -> None:
    with pretend(3) as devices:
        assert devices == Devices(count=3, real=False)
        assert devices.device == torch.device("cpu")


def test_the_current_device_belongs_to_a_thread() -> None:
    accelerator, seen = Accelerator(3), list[int]()
    with accelerator.device_index(2):
        other = threading.Thread(target=lambda: seen.append(accelerator.current_device_index()))
        other.start()
        other.join()
        assert (seen, accelerator.current_device_index()) == ([0], 2)
    assert accelerator.current_device_index() == 0


@pytest.mark.parametrize("n", [0, -1])
def test_at_least_one_device(n: int) -> None:
    with (
        pytest.raises(ValueError, match=f"^pretend needs at least one device, got n={n}$"),
        pretend(n),
    ):
        pass


def test_everything_is_restored() -> None:
    before = everything()
    with pretend(2):
        assert everything() != before
        nn.DataParallel(nn.Linear(2, 2))(torch.zeros(4, 2)).sum().backward()
    assert everything() == before
    assert nn.DataParallel(nn.Linear(2, 2)).device_ids == []


def test_everything_is_restored_after_an_exception() -> None:
    before = everything()
    with pytest.raises(LookupError), pretend(2):
        raise LookupError
    assert everything() == before


def test_nesting() -> None:
    def count() -> int:
        return len(nn.DataParallel(nn.ReLU()).device_ids)

    before = everything()
    with pretend(4):
        outer = everything()
        with pretend(2):
            assert count() == 2
            nn.DataParallel(nn.Linear(2, 2))(torch.zeros(4, 2)).sum().backward()
        assert everything() == outer
        assert count() == 4
    assert everything() == before


def test_a_torch_that_has_the_primitives(monkeypatch: pytest.MonkeyPatch) -> None:
    # A CUDA build of torch on a machine without GPUs.
    genuine = object()
    monkeypatch.setattr(torch._C, "_scatter", genuine, raising=False)
    with pretend(2):
        assert torch._C._scatter is not genuine
    assert torch._C._scatter is genuine


def test_enough_real_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    before = everything()
    for n in (1, 4):
        with pretend(n) as devices:
            assert devices == Devices(count=n, real=True)
            assert devices.device == torch.device("cuda:0")
            assert everything() == before
    with pretend(5) as devices:
        assert not devices.real
        assert devices.device == torch.device("cpu")


@pytest.mark.parametrize(
    ("owner", "name", "text"),
    [
        (comm, "reduce_add", "torch.nn.parallel.comm.reduce_add"),
        (_functions, "Gather", "torch.nn.parallel._functions.Gather"),
        (torch._utils, "_get_current_device_index", "torch._utils._get_current_device_index"),
        (
            _pretend._data_parallel,
            "_get_all_device_indices",
            "torch.nn.parallel.data_parallel._get_all_device_indices",
        ),
    ],
)
def test_a_torch_that_lacks_a_name(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, text: str) -> None:
    monkeypatch.delattr(owner, name)
    before = everything()
    with pytest.raises(UnsupportedTorch) as caught, pretend(2):
        pass
    assert str(caught.value) == (
        f"cannot pretend to have devices: torch {torch.__version__} has no {text}; "
        "torch_ref was tested with torch 2.13 to 2.15"
    )
    assert everything() == before


@pytest.mark.parametrize("version", ["2.12.1", "2.16.0+cpu", "3.0.0a1"])
def test_a_torch_outside_of_the_range(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    sentence = (
        f"torch_ref was tested with torch 2.13 to 2.15, and this is torch {version}: run tests/reference"
    )
    with pytest.warns(UserWarning, match=re.escape(sentence)), pretend(2):
        pass


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.14.1", "2.15.0+cu132"])
def test_a_torch_inside_of_the_range(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pretend(2):  # warnings are errors
        pass


def test_a_torch_that_asks_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(ctx: object, *tensors: object) -> None:
        pass

    monkeypatch.setattr(_functions.Gather, "forward", staticmethod(forward))
    with pytest.raises(UnsupportedTorch, match=r"question about a tensor's device in .*forward"):
        pretend(2).__enter__()
    with pytest.raises(UnsupportedTorch, match=r"no torch\.nothing in torch\.nn\.parallel\.comm"):
        _pretend._seen_by(comm, nothing=None)


@pytest.mark.parametrize("function", ["Broadcast", "ReduceAddCoalesced", "Gather", "Scatter"])
def test_recompiled_functions_are_torchs_own(function: str) -> None:
    genuine = getattr(_functions, function).forward
    recompiled = on_first_device(genuine)
    assert recompiled.__globals__ is genuine.__globals__
    ours, theirs = recompiled.__code__, genuine.__code__
    assert ours.co_filename == theirs.co_filename
    assert ours.co_varnames == theirs.co_varnames
    assert set(theirs.co_names) - set(ours.co_names) <= {"device", "type", "get_device"}
    assert set(ours.co_names) <= set(theirs.co_names)
    lines = {line for _, _, line in ours.co_lines()} - {ours.co_firstlineno}
    assert lines <= {line for _, _, line in theirs.co_lines()}


def test_frames_are_torchs_own() -> None:
    def fail(module: nn.Module, args: object) -> None:
        raise LookupError

    linear = nn.Linear(2, 2)
    linear.register_forward_pre_hook(fail)
    with pretend(2), pytest.raises(LookupError) as caught:
        nn.DataParallel(linear)(torch.zeros(4, 2))
    frames = [entry.frame.code.path for entry in caught.traceback[1:]]
    assert frames
    assert all("torch" in Path(frame).parts for frame in frames)
    assert "parallel_apply.py" in str(caught.value)


def test_backward_belongs_inside() -> None:
    with pretend(2):
        loss = nn.DataParallel(nn.Linear(2, 2))(torch.zeros(4, 2)).sum()
    # A CPU build lacks the copies, and a build for CUDA the driver.
    errors = (AttributeError, AssertionError, RuntimeError)
    with pytest.raises(errors, match=r"'_scatter'|for CPU tensors|NVIDIA driver"):
        loss.backward()


@pretend(3)
def test_as_a_decorator() -> None:
    assert nn.DataParallel(nn.ReLU()).device_ids == [0, 1, 2]


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def test_imports_torch_alone() -> None:
    for path in FOLDER.glob("*.py"):
        roots = {name.partition(".")[0] for name in imported(path)}
        assert roots - set(sys.stdlib_module_names) <= {"torch"}, path.name


@pytest.mark.slow
def test_readme_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env=os.environ | {"PYTHONPATH": str(FOLDER.parent), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "torch.nn.parallel.comm.reduce_add" in done.stdout


def test_readme_names_every_replacement() -> None:
    readme = (FOLDER / "README.md").read_text()
    for owner, name, _ in _pretend._replacements(2):
        assert owner.__name__.rpartition(".")[2] in readme
        assert name in readme
