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

ROOMS = {
    "jaxpar": "index",
    "jaxpar.nn": "nn",
    "jaxpar.nn.functional": "nn",
    "jaxpar.optim": "optim",
    "jaxpar.optim.lr_scheduler": "lr_scheduler",
    "jaxpar.data": "data",
    "jaxpar.random": "random",
    "jaxpar.random.init": "random",
    "jaxpar.distributed": "distributed",
    "jaxpar.comm_hooks": "comm_hooks",
    "jaxpar.parity": "compare",
    "jaxpar.parity.measuring": "comparison",
    "jaxpar.errors": "errors",
}
"""Every public room, and the page of the guide that it belongs to."""


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", lambda app: write(Path(app.srcdir)))
    return {"parallel_read_safe": True}


def write(docs: Path) -> None:
    """Writes docs/api. A page that is as it was stays untouched, so Sphinx does not read it again."""
    folder = docs / "api"
    folder.mkdir(exist_ok=True)
    headings = {path.stem: path.read_text().partition("\n")[0] for path in docs.glob("*.md")}
    pages = {f"{room}.md": page(room, headings) for room in ROOMS} | {"index.md": index()}
    for path in set(folder.glob("*.md")) - {folder / name for name in pages}:
        path.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def index() -> str:
    rows = [f"* [{room}]({room}.md): {summary(importlib.import_module(room))}" for room in ROOMS]
    toc = "\n".join(ROOMS)
    return f"# API\n\n{chr(10).join(rows)}\n\n```{{toctree}}\n:hidden:\n\n{toc}\n```\n"


def summary(module: ModuleType) -> str:
    return " ".join((inspect.getdoc(module) or "").partition("\n\n")[0].split())


def page(room: str, headings: dict[str, str]) -> str:
    module = importlib.import_module(room)
    found = {name: documented(source, name) for name, source in contents(module).items()}
    rows = [f"| [{name}](#{name.lower()}) | {first_sentence(text)} |" for name, (_, text) in found.items()]
    entries = [entry(room, name, thing, text, headings) for name, (thing, text) in found.items()]
    return (
        f"# {room}\n\n{summary(module)} The guide: [{ROOMS[room]}](../{ROOMS[room]}.md).\n\n"
        "| | |\n|---|---|\n" + "\n".join(rows) + "\n\n" + "\n".join(entries)
    )


def contents(module: ModuleType) -> dict[str, ModuleType]:
    """What a room offers, and where it is defined: by the table of contents, or all that its file defines."""
    stub = Path(module.__file__ or "").with_suffix(".pyi")
    if not stub.exists():
        return {name: module for name, thing in vars(module).items() if is_own(name, thing, module)}
    lines = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
    found = {each.name: source(module, line) for line in lines if line.module for each in line.names}
    return {name: file for name, file in found.items() if not name.startswith("_")}


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
    about = guide(name, headings)
    link = f"\nThe guide: [{about}](../{about}.md).\n" if about else ""
    return f"## {name}\n\n```{{eval-rst}}\n{directive(f'{room}.{name}', thing, text)}\n```\n{link}"


def directive(name: str, thing: object, text: str) -> str:
    if inspect.isroutine(thing):
        return f".. autofunction:: {name}"
    if not inspect.isclass(thing):
        return f".. py:data:: {name}\n\n" + textwrap.indent(restructured(text), "   ")
    hidden = "\n   :exclude-members: count, index" if issubclass(thing, tuple) else ""
    return f".. autoclass:: {name}\n   :members:{hidden}"


def guide(name: str, headings: dict[str, str]) -> str | None:
    """The page that has the name in its heading."""
    return next((page for page, text in sorted(headings.items()) if re.search(rf"\b{name}\b", text)), None)
