"""Pages of the API, one for each public room, in the order of its table of contents (`__init__.pyi`).

A name is documented where users find it (`jaxpar.train_step`), not where its file lies
(`jaxpar._training.train_step`), and links the page of the guide that is about it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from docstrings import restructured
from sphinx.pycode import ModuleAnalyzer

GUIDES = {"jaxpar": "index", "jaxpar.parity": "compare", "jaxpar.parity.measuring": "comparison"}
"""The page of the guide about a room, where none has its name."""

LAYERS = "layers"
"""The page that the extension of this name writes."""


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", lambda app: write(Path(app.srcdir)))
    return {"parallel_read_safe": True}


def write(docs: Path) -> None:
    """Writes docs/api. A page that is as it was stays untouched, so Sphinx does not read it again."""
    folder = docs / "api"
    folder.mkdir(exist_ok=True)
    headings = {path.stem: path.read_text().partition("\n")[0] for path in docs.glob("*.md")}
    pages = {f"{room}.md": page(room, headings) for room in rooms()} | {"index.md": index()}
    for path in set(folder.glob("*.md")) - {folder / name for name in (*pages, f"{LAYERS}.md")}:
        path.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def rooms(room: str = "jaxpar") -> list[str]:
    """A public room and those that its table of contents names, in its order."""
    module = importlib.import_module(room)
    lines = [line for line in imports(module) if line.module is None]
    return [room, *(each for line in lines for name in line.names for each in rooms(f"{room}.{name.name}"))]


def about(room: str, headings: dict[str, str]) -> str:
    """The page of the guide: of its own name, or else of the room that it is in."""
    name = GUIDES.get(room, room.rpartition(".")[2])
    return name if name in headings or room in GUIDES else about(room.rpartition(".")[0], headings)


def index() -> str:
    rows = [f"* [{room}]({room}.md): {summary(importlib.import_module(room))}" for room in rooms()]
    rows.append(
        f"* [{LAYERS}]({LAYERS}.md): each layer and function of jaxpar.nn and its counterpart in torch."
    )
    toc = "\n".join([*rooms(), LAYERS])
    return f"# API\n\n{chr(10).join(rows)}\n\n```{{toctree}}\n:hidden:\n\n{toc}\n```\n"


def summary(module: ModuleType) -> str:
    return " ".join((inspect.getdoc(module) or "").partition("\n\n")[0].split())


def page(room: str, headings: dict[str, str]) -> str:
    module, guide = importlib.import_module(room), about(room, headings)
    found = {name: documented(source, name) for name, source in contents(module).items()}
    rows = [f"| [{name}](#{name.lower()}) | {first_sentence(text)} |" for name, (_, text) in found.items()]
    entries = [entry(room, name, thing, text, headings) for name, (thing, text) in found.items()]
    return (
        f"# {room}\n\n{summary(module)} The guide: [{guide}](../{guide}.md).\n\n"
        "| | |\n|---|---|\n" + "\n".join(rows) + "\n\n" + "\n".join(entries)
    )


def contents(module: ModuleType) -> dict[str, ModuleType]:
    """What a room offers, and where it is defined: by the table of contents, or all that its file defines."""
    lines = imports(module)
    if not lines:
        return {name: module for name, thing in vars(module).items() if is_own(name, thing, module)}
    found = {each.name: source(module, line) for line in lines if line.module for each in line.names}
    return {name: file for name, file in found.items() if not name.startswith("_")}


def imports(module: ModuleType) -> list[ast.ImportFrom]:
    """The lines of a room's table of contents; none of a room that is one file."""
    stub = Path(module.__file__ or "").with_suffix(".pyi")
    text = stub.read_text() if stub.exists() else ""
    return [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]


def is_own(name: str, thing: object, module: ModuleType) -> bool:
    return not name.startswith("_") and getattr(thing, "__module__", "") == module.__name__


def source(module: ModuleType, line: ast.ImportFrom) -> ModuleType:
    return importlib.import_module("." * line.level + str(line.module), module.__name__)


def documented(file: ModuleType, name: str) -> tuple[Any, str]:
    """A thing and what is said of it. Of a constant that is the text below it, not its type's docstring."""
    thing = getattr(file, name)
    if inspect.isclass(thing) or inspect.isroutine(thing):
        return thing, inspect.getdoc(thing) or ""
    texts = ModuleAnalyzer.for_module(file.__name__).find_attr_docs()
    return thing, "\n".join(texts.get(("", name), [])).strip()


def first_sentence(text: str) -> str:
    """Of a docstring, for a cell of a table."""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def entry(room: str, name: str, thing: object, text: str, headings: dict[str, str]) -> str:
    guide = naming(name, headings)
    link = f"\nThe guide: [{guide}](../{guide}.md).\n" if guide else ""
    return f"## {name}\n\n```{{eval-rst}}\n{directive(f'{room}.{name}', thing, text)}\n```\n{link}"


def directive(name: str, thing: object, text: str) -> str:
    if inspect.isroutine(thing):
        return f".. autofunction:: {name}"
    if not inspect.isclass(thing):
        return f".. py:data:: {name}\n\n" + textwrap.indent(restructured(text), "   ")
    if not thing.__module__.startswith("jaxpar"):
        return f".. py:class:: {name}\n   :no-index:\n\n   {thing.__module__}.{thing.__qualname__}."
    lines = [f".. autoclass:: {name}", ":members:"]
    if issubclass(thing, tuple):
        lines.append(":exclude-members: count, index")
    if not f"{thing.__module__}.".startswith(name.rpartition(".")[0] + "."):
        lines.append(":no-index:")  # another room's class, which has its place in the index there
    return "\n   ".join(lines)


def naming(name: str, headings: dict[str, str]) -> str | None:
    """The page that has the name in its heading."""
    return next((page for page, text in sorted(headings.items()) if re.search(rf"\b{name}\b", text)), None)
