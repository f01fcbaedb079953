"""The floors: a module imports only from lower ones. This list is the picture of the architecture."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "jaxpar"

FLOORS = [
    {"errors", "_typing"},
    {
        "_tree",
        "_random",
        "_virtual",
        "_visible",
        "_convolution",
        "_lift",
        "_interrupt",
        "_scalar",
        "_watchdog",
        "_rulebook",
        "_precision",
        "_spec",
        "_compiled",
    },
    {"_devices", "random"},
    {"_placement", "_current", "_move", "distributed"},
    {"_spread", "_progress", "_check_replicas"},
    {"_shards", "_modules", "_reduce"},
    {"_scatter", "_replicate", "_gather", "_backends"},
    {"_program", "_loss", "data"},
    {"_parallel_apply"},
    {"_data_parallel", "_on_device", "_each_device", "comm_hooks"},
    {"_distributed_data_parallel"},
    {"_train_step", "_metrics", "_checkpointer"},
    {"_demo", "_memory_report", "_seeing", "_estimate", "_launch", "parity"},
    {"_cli", "_pytest_plugin"},
    {"__main__"},
]
LEAVES = {"nn", "optim"}
"""They import nothing above errors, _typing and the rulebook, and nothing below the roof imports them."""

LONGEST_FILE, LONGEST_FUNCTION = 400, 60


def floor_of(module: str) -> int:
    return next(i for i, floor in enumerate(FLOORS) if module in floor)


def modules() -> dict[str, list[Path]]:
    """Files by the word at the top of the package."""
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        word = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if word != "__init__":
            found.setdefault(word, []).append(path)
    return found


def imports(path: Path) -> set[str]:
    """The words of jaxpar that a file imports, wherever in the file."""
    found = set()
    inside = path.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = list(inside[: len(inside) - node.level + 1])
            words = base + (node.module or "").split(".")
            names = [w for w in words if w]
            found |= {names[0]} if names else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jaxpar":
            found |= {"jaxpar." + alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {"jaxpar." for alias in node.names if alias.name.split(".")[0] == "jaxpar"}
    return found


def arrows() -> list[tuple[str, str]]:
    return [
        (word, other)
        for word, files in modules().items()
        for f in files
        for other in imports(f)
        if other != word
    ]


def test_imports_point_down():
    for word, other in arrows():
        if word in LEAVES:
            assert other in FLOORS[0] | {"_rulebook"}, f"{word} is a leaf and imports {other}"
        elif other.startswith("jaxpar."):
            assert floor_of(word) >= len(FLOORS) - 3, f"{word} imports the package itself"
        else:
            assert other not in LEAVES, f"{word} imports the leaf {other}"
            assert floor_of(other) < floor_of(word), (
                f"{word} (floor {floor_of(word)}) imports {other} (floor {floor_of(other)})"
            )


def test_every_module_has_a_floor():
    assert set(modules()) == set().union(*FLOORS) | LEAVES


@pytest.mark.parametrize("fault", ["_scatter", "_data_parallel"])
def test_a_planted_arrow_is_found(fault, monkeypatch):
    monkeypatch.setattr(f"{__name__}.arrows", lambda: [("_tree", fault)])
    with pytest.raises(AssertionError, match=r"_tree \(floor 1\) imports"):
        test_imports_point_down()


def test_the_table_of_contents_only_imports():
    for path in PACKAGE.rglob("__init__.pyi"):
        assert all(isinstance(node, ast.ImportFrom) for node in ast.parse(path.read_text()).body), path


def test_files_and_functions_are_short():
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "torch_ref").rglob("*.py")]:
        text = path.read_text()
        assert text.count("\n") <= LONGEST_FILE, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                length = node.end_lineno - body[0].lineno + 1 if body else 0
                assert length <= LONGEST_FUNCTION, f"{path}: {node.name} has {length} lines"


def test_forbidden_things():
    names = {"utils", "helpers", "common", "base", "misc"}
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert path.stem.strip("_") not in names, path
        if path.name != "_virtual.py" and "_demo" not in path.parts and path.name != "_cli.py":
            calls = [ast.unparse(n.func) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
            assert not any(call.endswith("config.update") for call in calls), (
                f"{path} changes jax's configuration"
            )
        if not {"_demo", "parity"} & set(path.parts) and path != PACKAGE / "random" / "_check.py":
            assert not re.search(r"^\s*(import|from) torch\b", text, re.M), f"{path} imports torch"
        if path.parent.name != "_backends":
            assert not re.search(r"if backend ==|backend in \(", text), f"{path} asks for the backend by name"


def test_torch_ref_knows_nothing_of_jaxpar():
    for path in (ROOT / "torch_ref").rglob("*.py"):
        assert not re.search(r"^\s*(import|from) (jaxpar|jax|flax)\b", path.read_text(), re.M), path


def test_every_public_name_has_a_docstring():
    import jaxpar

    for name in jaxpar.__all__:
        documentation = getattr(jaxpar, name).__doc__ or ""
        assert len(documentation) > 40, name
