"""Docstrings are Markdown, which an editor's pop-up shows; Sphinx's autodoc expects reStructuredText.

This turns one into the other before napoleon takes the sections apart.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGES = {path.stem for path in Path(__file__).parents[1].glob("*.md")}

CODE = re.compile(r"(`[^`]+`)")
GLUED = re.compile(r"(?<=[^` ])``(?=\w)")
"""The end of a span of code with a letter after it, as in `Device`s. reStructuredText wants a border."""
PAGE = re.compile(r"docs/(\w+)\.md")
TABLE = re.compile(r" *\|.*\n *\|[-|: ]+\n")
SPECIAL = re.compile(r"^ *\* |[*|\\]|(?<=\w)_(?!\w)", re.M)
"""The bullet of a list, which stays, and what is escaped."""


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process, priority=400)  # napoleon has 500
    return {"parallel_read_safe": True}


def _process(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    lines[:] = restructured("\n".join(lines)).split("\n")


def restructured(markdown: str) -> str:
    """The same in reStructuredText: fences, tables, code, lists and links to pages; all else stays."""
    parts = re.split(r"^( *)```(\w*)\n(.*?)^ *```$", markdown, flags=re.M | re.S)
    texts, fences = parts[::4], zip(parts[1::4], parts[2::4], parts[3::4], strict=True)
    made = [_prose(texts[0])]
    for (indent, language, code), text in zip(fences, texts[1:], strict=True):
        block = re.sub(r"^(?=.)", "   ", code, flags=re.M)
        made += [f"{indent}.. code-block:: {language or 'text'}\n\n{block}", _prose(text)]
    return "".join(made)


def _prose(text: str) -> str:
    return "\n\n".join(map(_paragraph, text.split("\n\n")))


def _paragraph(text: str) -> str:
    if TABLE.match(text):
        return _table(text)
    spans = "".join(f"`{piece}`" if piece.startswith("`") else _words(piece) for piece in CODE.split(text))
    return GLUED.sub(r"``\\ ", spans)


def _words(text: str) -> str:
    """Escapes what reStructuredText would read as markup, and links the pages that are named."""
    return PAGE.sub(_link, SPECIAL.sub(lambda found: ("" if found[0][-1] == " " else "\\") + found[0], text))


def _link(found: re.Match[str]) -> str:
    return f":doc:`{found[1]} </{found[1]}>`" if found[1] in PAGES else found[0]


def _table(text: str) -> str:
    """A list-table; the second line of a Markdown table is a rule."""
    lines = text.strip("\n").split("\n")
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))] for line in lines]
    made = [".. list-table::", "   :header-rows: 1", ""]
    for row in rows[:1] + rows[2:]:
        made += [f"   {'* -' if i == 0 else '  -'} {_paragraph(cell)}" for i, cell in enumerate(row)]
    return "\n".join(indent + line for line in made)
