"""Modes of torch leave its compiler unimported while nobody uses it, and uncompiled where somebody does."""

from __future__ import annotations

import importlib
import sys

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from jaxpar.parity._sides.uncompiled_mode import without_compiler  # noqa: E402


def mode():
    """Return a class of modes that collect the files of their callers."""

    class Callers(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            frame = sys._getframe(1)
            while frame is not None:
                FILES.add(frame.f_code.co_filename)
                frame = frame.f_back
            return operation(*args, **(kwargs or {})) * 2

    return Callers


FILES: set[str] = set()


def compiler_calls(kind) -> bool:
    FILES.clear()
    with kind():
        assert (torch.ones(2) + 1).tolist() == [6, 6]
    return any("_dynamo" in file for file in FILES)


def test_where_nobody_uses_it_it_is_not_imported(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch._dynamo")]:
        monkeypatch.delitem(sys.modules, name)
    assert not compiler_calls(without_compiler(mode()))
    assert "torch._dynamo" not in sys.modules


@pytest.mark.full
def test_where_it_is_imported_torch_calls_as_ever():
    importlib.import_module("torch._dynamo")
    assert compiler_calls(without_compiler(mode())) == compiler_calls(mode())
