"""The lines that a run reaches: those of the model's files and scripts, and not of installed packages."""

from __future__ import annotations

import types

import pytest

from jaxpar.parity._sides.lines_run import LinesRun

SOURCE = "def double(x):\n    return x + x\n"


def function_in(path):
    module = types.ModuleType("module")
    exec(compile(SOURCE, path, "exec"), module.__dict__)
    return module.double


@pytest.mark.parametrize(
    ("path", "watched"),
    [
        ("/home/user/model.py", True),
        ("/home/user/env/lib/python3.11/site-packages/numpy/dtype.py", False),
        ("/usr/lib/python3/dist-packages/numpy/dtype.py", False),
        ("/home/user/site-packages.py", True),
    ],
)
def test_another_environments_packages_are_not_watched(path, watched):
    double = function_in(path)
    lines = LinesRun(frozenset())
    with lines:
        double(2)
    assert (double.__code__ in lines.run) is watched


def test_a_models_file_is_watched_wherever_it_is():
    path = "/env/site-packages/timm/resnet.py"
    double = function_in(path)
    lines = LinesRun(frozenset({path}))
    with lines:
        double(2)
    assert double.__code__ in lines.run
