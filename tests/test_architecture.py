"""The floors: a room imports only from lower ones. This list is the picture of the architecture."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "jaxpar"

FLOORS = [
    {"_arguments"},
    {
        "errors",
        "_counterparts",
        "_exact",
        "_interrupt",
        "_stamp",
        "_typing",
        "_upstream",
        "_version",
    },
    {"_tree", "_rulebook", "_statistics"},
    {"_devices", "random"},
    {"_parallel", "distributed", "distributions"},
    {"comm_hooks", "data", "_metrics"},
    {"_training"},
    {"_checkpointer", "_tools", "parity"},
    {"_cli", "_pytest_plugin"},
    {"__main__"},
]
GROUND = FLOORS[0] | FLOORS[1]
LEAVES = {"nn", "optim"}
"""They import nothing above the ground floor but the rulebook and the statistics, and only the roof imports
them."""

ROOT_ENTRIES = 32
LONGEST_FILE, LONGEST_FUNCTION = 400, 60

Name = tuple[str, ...]
"""A module below jaxpar: ("_parallel", "scatter"); of a package, its folder."""


def floor_of(room: str) -> int:
    return next(i for i, floor in enumerate(FLOORS) if room in floor)


@functools.cache
def files() -> dict[Name, Path]:
    """Every module of the package, `()` being jaxpar itself."""
    modules = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        modules[parts[:-1] if parts[-1] == "__init__" else parts] = path
    return modules


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def arrows() -> list[tuple[Name, Name]]:
    """Which module imports which, wherever in the file, also inside of functions."""
    known = files()
    return [
        (module, target)
        for module, path in known.items()
        for target in imports(path, module, known)
        if target != module
    ]


def imports(path: Path, module: Name, known: dict[Name, Path], at_import: bool = False) -> set[Name]:
    package = module if path.name == "__init__.py" else module[:-1]
    found: set[Name] = set()
    for node in run_at_import(tree_of(path)) if at_import else ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {
                tuple(alias.name.split(".")[1:]) for alias in node.names if alias.name.startswith("jaxpar")
            }
        if not isinstance(node, ast.ImportFrom):
            continue
        words = tuple((node.module or "").split(".")) if node.module else ()
        if node.level:
            base = package[: len(package) - node.level + 1] + words
        elif words[:1] == ("jaxpar",):
            base = words[1:]
        else:
            continue
        for alias in node.names:
            found.add((*base, alias.name) if (*base, alias.name) in known else base)
    return found


def run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what runs when a module is imported: no functions, and nothing that is only for type checkers."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return
    yield node
    for_checkers = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
    for child in node.orelse if for_checkers else ast.iter_child_nodes(node):
        yield from run_at_import(child)


@pytest.mark.full
def test_imports_point_down():
    for (room, *_), target in arrows_between_rooms():
        other = target[0] if target else "jaxpar"
        if room in LEAVES:
            assert other in GROUND | {"_rulebook", "_statistics"}, f"{room} is a leaf and imports {other}"
        elif other == "jaxpar" or other in LEAVES:
            assert floor_of(room) >= len(FLOORS) - 3, f"{room} imports {other}"
        else:
            assert floor_of(other) < floor_of(room), (
                f"{room} (floor {floor_of(room)}) imports {other} (floor {floor_of(other)})"
            )


def arrows_between_rooms() -> list[tuple[Name, Name]]:
    return [(module, target) for module, target in arrows() if module and module[0] != (*target, "")[0]]


@pytest.mark.full
def test_no_arrow_goes_through_a_private_door():
    # From a room one may enter the rooms beside it, but not their private files.
    for module, target in arrows():
        package = module if files()[module].name == "__init__.py" else module[:-1]
        shared = 0
        while shared < min(len(package), len(target)) and package[shared] == target[shared]:
            shared += 1
        private = [word for word in target[shared + 1 :] if word.startswith("_")]
        assert not private, f"{'.'.join(module)} imports {'.'.join(target)}, which is private there"


def test_no_circles_between_files():
    above: dict[Name, set[Name]] = {}
    for module, target in arrows():
        above.setdefault(module, set()).add(target)
    for start in above:
        for circle in circles(start, above):
            raise AssertionError("a circle: " + " -> ".join(".".join(m) for m in circle))


def test_every_module_can_be_imported_first():
    """A module runs the packages of what it imports, whose circles the law of files does not see."""
    above = arrows_at_import()
    for start in above:
        for circle in circles(start, above):
            raise AssertionError("a circle at import: " + " -> ".join(".".join(m) for m in circle))


def arrows_at_import() -> dict[Name, set[Name]]:
    """Of each module, what runs before its first line that needs it: other modules and their packages."""
    above: dict[Name, set[Name]] = {}
    for module, path in files().items():
        for target in imports(path, module, files(), at_import=True):
            above.setdefault(module, set()).update(packages_of(target) - packages_of(module))
    return above


def packages_of(module: Name) -> set[Name]:
    """The module itself and all packages that hold it."""
    return {module[:i] for i in range(len(module) + 1)}


def test_parity_is_an_island():
    # It could be a package of its own: of jaxpar it knows what users know, and the ground.
    for module, target in arrows_between_rooms():
        if module[0] == "parity" and (*target, "")[0] not in GROUND | {"_rulebook", "_statistics"}:
            private = [word for word in target if word.startswith("_")]
            assert not private, f"parity is an island, and {'.'.join(module)} imports {'.'.join(target)}"


def circles(start: Name, above: dict[Name, set[Name]]) -> list[list[Name]]:
    """The ways from a module back to itself; a package and its own files count as apart."""
    todo, seen = [[start]], {start}
    while todo:
        way = todo.pop()
        for target in above.get(way[-1], ()):
            if target == start:
                return [[*way, start]]
            if target not in seen:
                seen.add(target)
                todo.append([*way, target])
    return []


def test_every_room_has_a_floor():
    rooms = {module[0] for module in files() if module}
    assert rooms == set().union(*FLOORS) | LEAVES


def test_the_root_can_be_read_at_a_glance():
    entries = [path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= ROOT_ENTRIES, sorted(entries)


PLANTED = [
    (test_imports_point_down, [(("_tree",), ("_parallel", "scatter"))], r"_tree \(floor 2\) imports"),
    (test_imports_point_down, [(("nn", "_conv"), ("_tree",))], "nn is a leaf"),
    (
        test_no_arrow_goes_through_a_private_door,
        [(("_training", "engine"), ("distributed", "_rendezvous"))],
        "private there",
    ),
    (
        test_no_circles_between_files,
        [(("_tree",), ("_typing",)), (("_typing",), ("errors",)), (("errors",), ("_tree",))],
        "a circle",
    ),
    (test_parity_is_an_island, [(("parity", "_compare"), ("_tree",))], "_compare imports _tree"),
    (test_parity_is_an_island, [(("parity", "_pair"), ("distributed", "_rendezvous"))], "is an island"),
]


@pytest.mark.parametrize(("law", "planted", "message"), PLANTED, ids=lambda x: getattr(x, "__name__", None))
def test_a_planted_arrow_is_found(law, planted, message, monkeypatch):
    monkeypatch.setattr(f"{__name__}.arrows", lambda: planted)
    with pytest.raises(AssertionError, match=message):
        law()


def test_a_planted_circle_of_packages_is_found(monkeypatch, tmp_path):
    texts = {
        ("a", "__init__"): "from .x import f",
        ("a", "x"): "from ..b.y import g\n\ndef f(): ...",
        ("b", "__init__"): "from .z import h",
        ("b", "y"): "def g(): ...",
        ("b", "z"): "def h():\n    from ..a.x import f",
    }
    for parts, text in texts.items():
        path = tmp_path.joinpath(*parts).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    paths = {
        parts[:-1] if parts[-1] == "__init__" else parts: tmp_path.joinpath(*parts).with_suffix(".py")
        for parts in texts
    }
    monkeypatch.setattr(f"{__name__}.files", lambda: paths)
    test_every_module_can_be_imported_first()
    paths["b", "z"].write_text("from ..a.x import f\n\ndef h(): ...")
    tree_of.cache_clear()
    with pytest.raises(AssertionError, match=r"a circle at import: .*a\.x -> b"):
        test_every_module_can_be_imported_first()


def test_the_table_of_contents_only_imports():
    for path in PACKAGE.rglob("__init__.pyi"):
        assert all(isinstance(node, ast.ImportFrom) for node in ast.parse(path.read_text()).body), path


def test_files_and_functions_are_short():
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "torch_ref").rglob("*.py")]:
        text = path.read_text()
        assert text.count("\n") <= LONGEST_FILE, path
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                length = node.end_lineno - body[0].lineno + 1 if body else 0
                assert length <= LONGEST_FUNCTION, f"{path}: {node.name} has {length} lines"


def test_forbidden_things():
    names = {"utils", "helpers", "common", "base", "misc"}
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert path.stem.strip("_") not in names, path
        if path.name != "virtual.py" and not {"demo", "_cli"} & set(path.parts):
            calls = [ast.unparse(n.func) for n in ast.walk(tree_of(path)) if isinstance(n, ast.Call)]
            assert not any(call.endswith("config.update") for call in calls), (
                f"{path} changes jax's configuration"
            )
        if not {"demo", "parity", "_cli"} & set(path.parts) and path != PACKAGE / "random" / "_check.py":
            assert not re.search(r"^\s*(import|from) torch\b", text, re.M), f"{path} imports torch"
        if path != PACKAGE / "_parallel" / "backends.py":
            assert not re.search(r"if backend ==|backend in \(", text), f"{path} asks for the backend by name"


def test_torch_ref_knows_nothing_of_jaxpar():
    for path in (ROOT / "torch_ref").rglob("*.py"):
        assert not re.search(r"^\s*(import|from) (jaxpar|jax|flax)\b", path.read_text(), re.M), path


def test_every_public_name_has_a_docstring():
    import jaxpar

    for name in jaxpar.__all__:
        documentation = getattr(jaxpar, name).__doc__ or ""
        assert len(documentation) > 40, name
